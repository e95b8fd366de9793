// SPDX-License-Identifier: Apache-2.0

// Runs the program 01_train_gpt with checkpoints: a resumed run is the one that never stopped, and
// runs are not mixed up.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "apogee/tests/examples/train_gpt_run.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/program.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace train_gpt_resume_test {

using ::apogee::testing::ReadFile;
using ::apogee::testing::TrainGptTest;
using ::testing::HasSubstr;

using RunResult = ::apogee::testing::ProgramResult;

// Lines of steps without what depends on the clock or on memory, and the validation's.
std::vector<std::string> LossLines(const std::string& out) {
  std::vector<std::string> lines;
  std::istringstream text(out);
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("step ")) continue;
    const size_t end = line.find(" tok/s");
    lines.push_back(end == std::string::npos ? line : line.substr(0, line.rfind("  ", end)));
  }
  return lines;
}

// Twelve steps in one go, and six, a new process, and six more.
TEST_F(TrainGptTest, AResumedRunIsTheOneThatNeverStopped) {
  const std::string hybrid = " --ranks 4 --plugin hybrid --tp-size 2 --zero-stage 2";
  int number = 0;
  const std::string gemini = " --ranks 2 --plugin gemini";
  for (const std::string& spread : {std::string(), hybrid, gemini}) {
    for (const std::string precision : {"f32", "bf16"}) {
      const std::string name = std::to_string(number++);
      const std::string flags = "--log-every 1 --dropout 0.1 --accumulate 2 --precision " +
                                precision + spread + " --out " + (dir_ / name);
      const RunResult one_go = Train(flags + "/one_go");
      ASSERT_EQ(one_go.exit_code, 0) << one_go.err;
      const RunResult six =
          Train(flags + "/halves --save-every 3 --steps 6 --sched.total_steps=12 --warmup 1" +
                (precision == "bf16" ? " --async-save" : ""));
      ASSERT_EQ(six.exit_code, 0) << six.err;
      EXPECT_THAT(six.out, HasSubstr("\nsaved step 3\n"));
      const RunResult rest = Train(flags + "/halves --resume auto");
      ASSERT_EQ(rest.exit_code, 0) << rest.err;
      EXPECT_THAT(rest.out, HasSubstr("\nresumed from " + (dir_ / name) +
                                      "/halves/checkpoints/step-00000006 at step 6\n"));

      std::vector<std::string> want = LossLines(one_go.out), got = LossLines(six.out);
      ASSERT_EQ(want.size(), 13u) << one_go.out;
      ASSERT_EQ(got.size(), 7u) << six.out;
      got.pop_back();  // the validation after six
      const std::vector<std::string> second = LossLines(rest.out);
      got.insert(got.end(), second.begin(), second.end());
      for (std::string& line : got) {
        // "/6" is narrower than "/12".
        const size_t slash = line.find("/6 ");
        if (slash != std::string::npos)
          line = "step  " + line.substr(5, slash - 5) + "/12" + line.substr(slash + 2);
      }
      EXPECT_EQ(got, want) << precision << spread;
      EXPECT_EQ(one_go.out.substr(one_go.out.find("sample:")),
                rest.out.substr(rest.out.find("sample:")));

      const auto whole = Rows(name + "/one_go/metrics.jsonl");
      const auto halves = Rows(name + "/halves/metrics.jsonl");
      ASSERT_EQ(halves.size(), 12u) << "the first half stays";
      for (size_t i = 0; i < whole.size(); ++i) {
        for (const std::string key : {"step", "loss", "lr", "grad_norm"}) {
          EXPECT_EQ(halves[i][key], whole[i][key]) << i;
        }
      }
      EXPECT_EQ(Rows(name + "/halves/validation.jsonl").back(),
                Rows(name + "/one_go/validation.jsonl").back());
      EXPECT_THAT(ReadFile(dir_ / (name + "/halves/train.log")), HasSubstr(six.out + rest.out));
    }
  }
}

// The same samples in the same steps under any number of ranks.
TEST_F(TrainGptTest, ResumesUnderOtherRanks) {
  const std::string common = "--precision f64 --out ";
  const RunResult one_go = Train(common + (dir_ / "one_go"));
  ASSERT_EQ(one_go.exit_code, 0) << one_go.err;
  ASSERT_EQ(Train(common + (dir_ / "six") + " --save-every 6 --ranks 2 --plugin zero2").exit_code,
            0);
  std::filesystem::remove_all(dir_ / "six/checkpoints/step-00000012");
  const RunResult rest =
      Train(common + (dir_ / "other") + " --resume " + (dir_ / "six/checkpoints") +
            " --ranks 4 --plugin hybrid --tp-size 2 --zero-stage 1");
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  const auto want = Rows("one_go/metrics.jsonl"), got = Rows("other/metrics.jsonl");
  ASSERT_EQ(got.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(got[i]["step"], want[6 + i]["step"]);
    EXPECT_NEAR(got[i]["loss"], want[6 + i]["loss"], 1e-8);
  }
}

TEST_F(TrainGptTest, ADamagedCheckpointIsPassedOverAndReplaced) {
  const std::string flags = "--save-every 1 --resume auto --out " + (dir_ / "out");
  const RunResult first = Train(flags + " --steps 4 --schedule constant --warmup 1");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("nothing to resume in " + (dir_ / "out/checkpoints")));
  const std::string file = dir_ / "out/checkpoints/step-00000004/";
  for (const auto& entry : std::filesystem::directory_iterator(file)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream bytes(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(-5, std::ios::end);
    const int byte = bytes.get();
    bytes.seekp(-5, std::ios::end);
    bytes.put(static_cast<char>(byte ^ 1));
  }
  const RunResult second = Train(flags + " --steps 5 --schedule constant --warmup 1 --ranks 2");
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("step-00000004 was passed over: "));
  EXPECT_THAT(second.out, HasSubstr("their digest differs"));
  EXPECT_THAT(second.out, HasSubstr("step-00000003 at step 3\n"));
  EXPECT_THAT(second.out,
              HasSubstr("note: step-00000004 was damaged and is now damaged-step-00000004: "));
  EXPECT_THAT(second.out, HasSubstr("\nsaved step 5\n"));
}

TEST_F(TrainGptTest, LeavesOnASignalWithACheckpoint) {
  // Signals the program once it trains.
  const std::string script = dir_.Write("stop.sh", R"(
signal=$1; log=$2; shift 2
"$@" & pid=$!
for _ in $(seq 600); do grep -q ^step "$log" 2>/dev/null && break; sleep 0.1; done
kill -s $signal $pid
wait $pid
)");
  const std::vector<std::pair<std::string, int>> signals = {{"TERM", 143}, {"INT", 130}};
  for (const auto& [signal, exit_code] : signals) {
    const std::string out = dir_ / signal;
    const std::string flags = " --data " + text_ +
                              " --layers 1 --heads 2 --dim 16 --block 16 --batch 8 --threads 2 "
                              "--steps 1000000 --ranks 2 --save-every 1000000 --out " +
                              out;
    const RunResult result = ::apogee::testing::RunProgram(
        "sh " + script + " " + signal + " " + out + "/train.log " + APOGEE_TRAIN_GPT, flags, dir_);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.out, HasSubstr("SIG" + signal + ": left after step "));
    EXPECT_THAT(result.out, HasSubstr("\nsaved step "));
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(out + "/checkpoints"), {}), 1);
  }
}

TEST_F(TrainGptTest, WillNotMixUpRuns) {
  const std::string flags = "--out " + (dir_ / "out");
  ASSERT_EQ(Train(flags + " --save-every 12").exit_code, 0);
  const RunResult anew = Train(flags + " --save-every 12");
  EXPECT_EQ(anew.exit_code, 1);
  EXPECT_THAT(anew.err, HasSubstr("has checkpoints of another run (step-00000012); go on with"));
  const RunResult seed = Train(flags + " --resume auto --seed 2 --ranks 4");
  EXPECT_EQ(seed.exit_code, 1);
  EXPECT_THAT(seed.err, HasSubstr("step-00000012 is of a run on seed 1, 8 samples of 16 bytes"));
  EXPECT_EQ(std::count(seed.err.begin(), seed.err.end(), '\n'), 1) << seed.err;
  const RunResult model = Train(flags + " --resume auto --dim 32");
  EXPECT_EQ(model.exit_code, 1);
  EXPECT_THAT(model.err, HasSubstr("step-00000012 does not fit this run:"));
  const RunResult fewer = Train(flags + " --resume auto --steps 11");
  EXPECT_EQ(fewer.exit_code, 1);
  EXPECT_THAT(fewer.err, HasSubstr("step-00000012 is at step 12, behind the last of --steps 11"));
  const RunResult none = Train("--resume " + (dir_ / "nowhere"));
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("/nowhere"));
  const RunResult schedule =
      Train(flags + " --resume auto --schedule constant --warmup 1 --steps 13");
  EXPECT_EQ(schedule.exit_code, 0) << schedule.err;
  EXPECT_THAT(schedule.out,
              HasSubstr("step-00000012: another learning-rate schedule: at step 12 "));
  const RunResult done = Train(flags + " --resume auto");
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("all 12 steps are done and validated: there is nothing to do"));
}

}  // namespace train_gpt_resume_test
}  // namespace apogee
