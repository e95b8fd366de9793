// SPDX-License-Identifier: Apache-2.0

// Runs the program 01_train_gpt on a tiny text: it learns, repeats itself bit by bit, writes files
// that parse, and answers bad input with one sentence and the right exit code.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/files/tfrecord.h"
#include "apogee/tests/support/program.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace train_gpt_test {

using ::apogee::testing::ReadFile;
using ::apogee::testing::TempDir;
using ::testing::HasSubstr;

using RunResult = ::apogee::testing::ProgramResult;

class TrainGptTest : public ::testing::Test {
 protected:
  TrainGptTest() {
    // Forty different lines, repeated: learnable within a few steps.
    std::string text;
    for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i % 40) + " of the text\n";
    text_ = dir_.Write("text.txt", text);
  }

  // Runs the program on the tiny text with a tiny model; `flags` come last and win.
  RunResult Train(const std::string& flags) { return Train(text_, flags); }
  RunResult Train(const std::string& data, const std::string& flags) {
    return Run(
        "--data " + data +
        " --layers 1 --heads 2 --dim 16 --block 16 --batch 8 --steps 12 --lr 0.01 --threads 2"
        " --sample 20 " +
        flags);
  }
  RunResult Run(const std::string& flags) {
    return ::apogee::testing::RunProgram(APOGEE_TRAIN_GPT, flags, dir_);
  }
  std::vector<nlohmann::json> Rows(const std::string& name) {
    return ::apogee::testing::ReadRows(dir_ / name);
  }
  // What must not depend on the clock.
  std::vector<nlohmann::json> Trajectory(const std::string& out) {
    std::vector<nlohmann::json> rows = Rows(out + "/metrics.jsonl");
    for (nlohmann::json& row : rows) {
      row.erase("seconds");
      row.erase("tokens_per_s");
    }
    return rows;
  }
  void ExpectWrongUsage(const std::string& flags, const std::string& message) {
    ExpectRefused(text_, flags, 2, message);
  }
  void ExpectRefused(const std::string& data, const std::string& flags, int exit_code,
                     const std::string& message) {
    const RunResult result = Train(data, "--out " + (dir_ / "refused") + " " + flags);
    EXPECT_EQ(result.exit_code, exit_code) << flags << "\n" << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr(message)) << flags;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "") << flags;
    EXPECT_FALSE(std::filesystem::exists(dir_ / "refused")) << flags;
  }

  TempDir dir_;
  std::string text_;
};

TEST_F(TrainGptTest, LearnsAndWritesItsFiles) {
  const RunResult result = Train("--out " + (dir_ / "out"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("step 12: validation loss"));
  EXPECT_THAT(result.out, HasSubstr("sample:\nIn the beginning"));
  EXPECT_EQ(result.out, ReadFile(dir_ / "out/train.log"));

  const auto rows = Rows("out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 12u);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["step"], i + 1);
    EXPECT_GT(rows[i]["tokens_per_s"], 0);
    EXPECT_GT(rows[i]["grad_norm"], 0);
    EXPECT_GT(rows[i]["memory"]["parameter"], 0);
  }
  EXPECT_NEAR(rows[0]["loss"], std::log(256.0), 0.3);
  EXPECT_LT(rows[11]["loss"], 0.8 * static_cast<double>(rows[0]["loss"]));
  ASSERT_EQ(Rows("out/validation.jsonl").size(), 1u);
  EXPECT_LT(Rows("out/validation.jsonl")[0]["loss"], 0.8 * static_cast<double>(rows[0]["loss"]));

  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "out")) {
    if (!entry.path().filename().string().starts_with("events.out.tfevents.")) continue;
    const auto events = apogee::testing::ReadEvents(entry.path());
    ASSERT_EQ(events.size(), 2u + 12 + 1);
    EXPECT_EQ(events[2].scalars.at("train/loss"), static_cast<float>(rows[0]["loss"]));
  }
}

TEST_F(TrainGptTest, TheSameFlagsGiveTheSameBits) {
  for (const std::string flags : {"", "--precision bf16 --dropout 0.1 --accumulate 2"}) {
    const RunResult first = Train(flags + " --out " + (dir_ / "a"));
    const RunResult second = Train(flags + " --out " + (dir_ / "b"));
    ASSERT_EQ(first.exit_code, 0) << first.err;
    ASSERT_EQ(second.exit_code, 0) << second.err;
    EXPECT_EQ(Trajectory("a"), Trajectory("b")) << flags;
    EXPECT_EQ(Rows("a/validation.jsonl"), Rows("b/validation.jsonl"));
    EXPECT_EQ(first.out.substr(first.out.find("sample:"), 40),
              second.out.substr(second.out.find("sample:"), 40));
  }
}

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

TEST_F(TrainGptTest, AccumulationIsTheBiggerBatch) {
  ASSERT_EQ(Train("--precision f64 --batch 8 --out " + (dir_ / "whole")).exit_code, 0);
  ASSERT_EQ(Train("--precision f64 --batch 2 --accumulate 4 --out " + (dir_ / "parts")).exit_code,
            0);
  const auto whole = Rows("whole/metrics.jsonl"), parts = Rows("parts/metrics.jsonl");
  ASSERT_EQ(whole.size(), parts.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(whole[i]["loss"], parts[i]["loss"], 1e-8);
    EXPECT_NEAR(whole[i]["grad_norm"], parts[i]["grad_norm"], 1e-8);
  }
}

// Four global micro-batches of two samples, spread over 1, 2 and 4 ranks.
TEST_F(TrainGptTest, ReproducibleLossesDoNotDependOnTheRanks) {
  auto run = [&](int ranks) {
    const RunResult result =
        Train("--steps 20 --reproducible --ranks " + std::to_string(ranks) + " --threads " +
              std::to_string(ranks) + " --batch " + std::to_string(2 * ranks) + " --accumulate " +
              std::to_string(4 / ranks) + " --out " + (dir_ / "out"));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    auto rows = Trajectory("out");
    for (nlohmann::json& row : rows) row.erase("memory");
    EXPECT_EQ(rows.size(), 20u);
    return std::pair(rows, Rows("out/validation.jsonl"));
  };
  const auto one = run(1);
  EXPECT_LT(one.first.back()["loss"], 0.8 * static_cast<double>(one.first[0]["loss"]));
  EXPECT_EQ(run(2), one);
  EXPECT_EQ(run(4), one);
}

TEST_F(TrainGptTest, RanksShareTheBatchOfOneRank) {
  ASSERT_EQ(Train("--precision f64 --dropout 0.1 --out " + (dir_ / "one")).exit_code, 0);
  const RunResult result =
      Train("--precision f64 --dropout 0.1 --ranks 4 --out " + (dir_ / "four"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, ReadFile(dir_ / "four/train.log")) << "rank 0 speaks for all";
  EXPECT_THAT(result.out, HasSubstr("f64, 4 ranks of 1 thread"));
  const auto one = Rows("one/metrics.jsonl"), four = Rows("four/metrics.jsonl");
  ASSERT_EQ(one.size(), four.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(one[i]["loss"], four[i]["loss"], 1e-8);
    EXPECT_NEAR(one[i]["grad_norm"], four[i]["grad_norm"], 1e-8);
  }
  const auto valid = Rows("one/validation.jsonl")[0], others = Rows("four/validation.jsonl")[0];
  EXPECT_NEAR(valid["loss"], others["loss"], 1e-8);
  EXPECT_EQ(valid["tokens"], others["tokens"]);
}

// Tensor parallelism over two ranks, and two data-parallel replicas.
TEST_F(TrainGptTest, RanksThatShareLayersTrainTheSameModel) {
  for (const std::string flags : {"--dropout 0.1", "--accumulate 2"}) {
    const std::string common = "--precision f64 " + flags + " --out ";
    const RunResult one = Train(common + (dir_ / "one"));
    ASSERT_EQ(one.exit_code, 0) << one.err;
    const RunResult four =
        Train("--ranks 4 --plugin hybrid --tp-size 2 --zero-stage 2 " + common + (dir_ / "four"));
    ASSERT_EQ(four.exit_code, 0) << four.err;
    EXPECT_THAT(four.out, HasSubstr("f64, 4 ranks of 1 thread: tp 2, dp 2, ZeRO stage 2"));
    const auto parameters = [](const std::string& out) {
      const size_t begin = out.find("GPT-2, ");
      return out.substr(begin, out.find(" parameters") - begin);
    };
    EXPECT_EQ(parameters(four.out), parameters(one.out)) << "all of them, not one rank's part";
    EXPECT_EQ(four.out.substr(four.out.find("sample:")), one.out.substr(one.out.find("sample:")));
    const auto want = Rows("one/metrics.jsonl"), got = Rows("four/metrics.jsonl");
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(want[i]["loss"], got[i]["loss"], 1e-8) << flags;
      EXPECT_NEAR(want[i]["grad_norm"], got[i]["grad_norm"], 1e-8) << flags;
    }
    EXPECT_NEAR(Rows("one/validation.jsonl")[0]["loss"], Rows("four/validation.jsonl")[0]["loss"],
                1e-8);
  }
}

TEST_F(TrainGptTest, AutomaticPrecisionSaysWhatItIs) {
  const RunResult result = Train("--precision auto --steps 1");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::ContainsRegex(" parameters, (bf16|f32), "));
}

TEST_F(TrainGptTest, HeadsThatRanksCannotShareExitWith1) {
  const RunResult result = Train("--ranks 4 --plugin hybrid --tp-size 4");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("tp 4 does not divide its 2 heads"));
}

TEST_F(TrainGptTest, RanksInHalfPrecisionRepeatTheirBits) {
  const std::string flags = "--precision fp16 --ranks 2 --accumulate 2 --dropout 0.1 --out ";
  const RunResult first = Train(flags + (dir_ / "a")), second = Train(flags + (dir_ / "b"));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(Trajectory("a"), Trajectory("b"));
  const auto rows = Rows("a/metrics.jsonl");
  EXPECT_LT(rows.back()["loss"], 0.8 * static_cast<double>(rows[0]["loss"]));
}

// "1.5 MiB" in MiB, behind `label`.
double MebibytesAfter(const std::string& text, const std::string& label) {
  std::istringstream rest(text.substr(text.find(label) + label.size()));
  double value = 0;
  std::string unit;
  rest >> value >> unit;
  EXPECT_EQ(unit, "MiB") << text;
  return value;
}

TEST_F(TrainGptTest, TheLedgerAgreesWithTheProcess) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
  const RunResult result =
      Train("--layers 4 --heads 4 --dim 192 --block 128 --batch 32 --steps 2 --sample 1");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const double ledger = MebibytesAfter(result.out, "peak memory: ");
  const double process = MebibytesAfter(result.out, "by the ledger, ");
  EXPECT_GT(ledger, 100);
  EXPECT_NEAR(ledger, process, 0.03 * process) << result.out;
}

TEST_F(TrainGptTest, WrongUsageExitsWith2) {
  ExpectWrongUsage("--optimiser adamw", "unknown flag --optimiser (did you mean --optimizer?)");
  ExpectWrongUsage("--optimizer adamv", "unknown optimizer \"adamv\" (did you mean \"adamw\"?)");
  ExpectWrongUsage("--precision bf61", "unknown precision \"bf61\" (did you mean \"bf16\"?)");
  ExpectWrongUsage("--schedule cosin", "unknown schedule \"cosin\" (did you mean \"cosine\"?)");
  ExpectWrongUsage("--optim.beta=1", "unknown option \"beta\" (did you mean \"betas\"?)");
  ExpectWrongUsage("--schedule step --warmup 3", "the schedule step has no warm-up");
  ExpectWrongUsage("--steps 0", "--steps: needs a whole number from 1 to 1e9, got 0");
  ExpectWrongUsage("--lr fast", "--lr: needs a number from 0");
  ExpectWrongUsage("--dim 10 --heads 3", "--dim must be a multiple of --heads, got 10 and 3");
  ExpectWrongUsage("--ranks 3", "--batch 8 does not divide among --ranks 3; use --batch 6 or 9");
  ExpectWrongUsage("--ranks 9", "--batch 8 does not divide among --ranks 9; use --batch 9");
  ExpectWrongUsage("--ranks 0", "--ranks: needs a whole number from 1 to 1e9, got 0");
  ExpectWrongUsage("--ranks -1", "--ranks: needs a whole number from 1 to 1e9, got -1");
  ExpectWrongUsage("--plugin dpp", "unknown plugin \"dpp\" (did you mean \"ddp\"?)");
  ExpectWrongUsage("--plugin single --ranks 2", "--plugin single runs one rank, got --ranks 2");
  ExpectWrongUsage("--plugin single --reproducible", "no effect with --plugin single");
  ExpectWrongUsage("--precision fp16", "fp16 needs a loss scale, which --plugin ddp has");
  ExpectWrongUsage("--ranks 2 --tp-size 2", "--tp-size has no effect with --plugin ddp; use");
  ExpectWrongUsage("--plugin zero2 --zero-stage 2",
                   "--zero-stage has no effect with --plugin zero2");
  ExpectWrongUsage("--plugin hybrid --zero-stage 4", "zero_stage must be 0 (nothing sharded)");
  ExpectWrongUsage("--plugin hybrid --ranks 4 --tp-size 3",
                   "--tp-size 3 does not divide --ranks 4");
  ExpectWrongUsage(
      "--plugin hybrid --ranks 4 --tp-size 2 --batch 3",
      "--batch 3 does not divide among --ranks 4 in groups of --tp-size 2; use --batch "
      "2 or 4");
  ExpectWrongUsage("--plugin hybrid --reproducible", "no effect with --plugin hybrid");
  ExpectWrongUsage("--reproducible --dropout 0.1", "--reproducible needs --dropout 0, got 0.1");
  ExpectWrongUsage("--keep 3", "--keep has no effect without --save-every");
  ExpectWrongUsage("--save-every 1 --keep 1", "--keep: needs a whole number from 2 to 1e9, got 1");
  ExpectWrongUsage("--save-every 1 --out ''", "--save-every needs --out");
  ExpectWrongUsage("--resume auto --out ''", "--resume auto needs --out");
  for (const char* seconds : {"0", "-1", "inf", "nan", "soon"}) {
    ExpectWrongUsage(
        "--timeout-seconds " + std::string(seconds),
        "--timeout-seconds: needs a number from 0.001 to below 1e+06, got " + std::string(seconds));
  }
  ExpectWrongUsage("--seed 1 stray=1", "unexpected argument \"stray=1\"");
}

TEST_F(TrainGptTest, BadDataExitsWith1) {
  ExpectRefused((dir_ / "none"), "", 1, "/none does not exist; give a text file");
  ExpectRefused(dir_.Write("empty", ""), "", 1, "/empty is empty; give a text file");
  ExpectRefused(dir_.Write("short", "abc"), "", 1, "a block of 16 needs 17 in each; give at least");
  ExpectRefused(dir_.Write("few", std::string(200, 'x')), "--ranks 200 --batch 200", 1,
                "200 ranks share only 164 samples; use fewer ranks or more data");
}

TEST_F(TrainGptTest, AnUnwritableOutExitsWith1) {
  const RunResult result = Train("--out " + text_ + "/out");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("cannot make the output directory " + text_ + "/out: "));
}

TEST_F(TrainGptTest, ARankThatFailsIsNamedOnce) {
  const RunResult result = Train("--ranks 4 --out " + text_ + "/out");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("rank 0: cannot make the output directory " + text_ + "/out: "));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST_F(TrainGptTest, ALossThatIsNotFiniteExitsWith1) {
  const RunResult result = Train("--lr 1e30 --out " + (dir_ / "out"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, ::testing::ContainsRegex(
                              "step [0-9]+: the loss is nan; lower --lr \\(now 1e\\+30\\)"));
  EXPECT_EQ(Train("--lr 1e30 --ranks 2").err, result.err) << "all ranks find it; told once";
  for (const auto& row : Rows("out/metrics.jsonl")) EXPECT_TRUE(row["loss"].is_number());
}

TEST_F(TrainGptTest, HelpExitsWith0) {
  const RunResult result = Run("--help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("--precision"));
}

}  // namespace train_gpt_test
}  // namespace apogee
