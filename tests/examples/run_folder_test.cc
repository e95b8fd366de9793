// SPDX-License-Identifier: Apache-2.0

// The folder of a run and its checkpoints, from outside: another run's flags on resume, a second
// run in the same folder, a run that is run again after its end, files that are none, full disks.
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <tuple>

#include "apogee/booster/booster.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/registry.h"
#include "apogee/optim/schedule/lr_schedule_registry.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/program.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace run_folder_test {

using ::apogee::testing::ReadFile;
using ::apogee::testing::ReadRows;
using ::apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using RunResult = ::apogee::testing::ProgramResult;

class RunFolderTest : public ::testing::Test {
 protected:
  RunFolderTest() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i % 40) + " of the text\n";
    text_ = dir_.Write("text.txt", text);
  }
  std::string Flags(const std::string& flags) const {
    return "--data " + text_ +
           " --layers 1 --heads 4 --dim 16 --block 16 --batch 8 --steps 4 --lr 0.01 --threads 2"
           " --sample 0 " +
           flags;
  }
  // `before`: shell commands that the program starts behind.
  RunResult Train(const std::string& flags, const std::string& before = "") const {
    return ::apogee::testing::RunProgram(before + " " + APOGEE_TRAIN_GPT, Flags(flags), dir_);
  }
  std::string Out() const { return " --out " + (dir_ / "out") + " "; }

  const TempDir dir_;
  std::string text_;
};

TEST_F(RunFolderTest, OtherFlagsOnResumeAreRefusedOrTold) {
  ASSERT_EQ(Train(Out() + "--save-every 2").exit_code, 0);
  const std::string again = Out() + "--resume auto --steps 6 --sched.total_steps=4 ";
  const RunResult heads = Train(again + "--heads 2");
  EXPECT_EQ(heads.exit_code, 1);
  EXPECT_THAT(heads.err, AllOf(HasSubstr("step-00000004 does not fit this run:"),
                               HasSubstr("model.n_head: saved with \"4\", this run has \"2\""),
                               HasSubstr("use the saved settings, or begin a new run")));
  const RunResult hf = Train(again + "--optimizer adamw_hf");
  EXPECT_EQ(hf.exit_code, 1);
  EXPECT_THAT(hf.err, HasSubstr("optimizer: saved with \"adamw\", this run has \"adamw_hf\""));
  const RunResult options =
      Train(again + "--lr 1e-4 --optim.weight_decay=0.5 --max-norm 2 --ranks 2");
  EXPECT_EQ(options.exit_code, 0) << options.err;
  EXPECT_THAT(options.out,
              AllOf(HasSubstr("lr 1e-04 has no effect: the saved run's 0.01 is kept"),
                    HasSubstr("weight_decay 0.5 has no effect: the saved run's 0.01 is kept"),
                    HasSubstr("max_norm is \"2\" now, in the saved run it was \"1\""),
                    HasSubstr("ranks is \"2\" now"), HasSubstr("plugin is \"ddp\" now"),
                    HasSubstr("steps is \"6\" now")));
}

TEST_F(RunFolderTest, TheSameFlagsAreNoNews) {
  ASSERT_EQ(Train(Out() + "--save-every 2").exit_code, 0);
  std::filesystem::remove_all(dir_ / "out/checkpoints/step-00000004");
  const RunResult rest = Train(Out() + "--save-every 2 --resume auto");
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.out, AllOf(HasSubstr("resumed from "), Not(HasSubstr("saved run")),
                              Not(HasSubstr("step-00000002:"))));
}

TEST_F(RunFolderTest, AFinishedRunHasNothingToDo) {
  const std::string flags = Out() + "--save-every 2 --resume auto ";
  ASSERT_EQ(Train(flags).exit_code, 0);
  const std::string rows = ReadFile(dir_ / "out/validation.jsonl");
  ASSERT_EQ(ReadRows(dir_ / "out/validation.jsonl").size(), 1u);
  for (const std::string ranks : {"", "--ranks 2"}) {
    const RunResult again = Train(flags + ranks);
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_THAT(again.out, HasSubstr("all 4 steps are done and validated: there is nothing to do"));
    EXPECT_EQ(ReadFile(dir_ / "out/validation.jsonl"), rows);
    EXPECT_EQ(ReadRows(dir_ / "out/metrics.jsonl").size(), 4u);
  }
  // One that was ended before its validation makes up for it; rows that are there twice go.
  dir_.Write("out/validation.jsonl", "");
  ASSERT_EQ(Train(flags).exit_code, 0);
  EXPECT_EQ(ReadFile(dir_ / "out/validation.jsonl"), rows);
  dir_.Write("out/validation.jsonl", rows + rows);
  ASSERT_EQ(Train(flags).exit_code, 0);
  EXPECT_EQ(ReadFile(dir_ / "out/validation.jsonl"), rows);
}

TEST_F(RunFolderTest, ASecondRunInTheFolderIsRefused) {
  // Starts a run, and a second one once the first trains; ends the first and says its number.
  const std::string script = dir_.Write("two.sh", R"(
out=$1; shift
rm -rf "$out"
"$@" --steps 1000000 >/dev/null 2>&1 & pid=$!
for _ in $(seq 600); do [ -s $out/metrics.jsonl ] && break; sleep 0.1; done
"$@"; code=$?
head -1 $out/metrics.jsonl
kill -9 $pid; wait $pid 2>/dev/null
echo "pid $pid"
exit $code
)");
  for (const std::string ranks : {"1", "2"}) {
    const RunResult second = ::apogee::testing::RunProgram(
        "bash " + script + " " + (dir_ / "out") + " " + APOGEE_TRAIN_GPT,
        Flags(Out() + "--ranks " + ranks), dir_);
    EXPECT_EQ(second.exit_code, 1) << second.out;
    const std::string pid = second.out.substr(second.out.find("pid ") + 4);
    EXPECT_THAT(second.err, HasSubstr(dir_ / "out" + " is in use by another run: process " +
                                      pid.substr(0, pid.find('\n')) + " on host "));
    EXPECT_THAT(second.err, HasSubstr("choose another output folder"));
    EXPECT_THAT(second.out, HasSubstr("{\"step\":1,")) << "the first one's rows stay";
  }
  EXPECT_EQ(Train(Out()).exit_code, 0) << "the lock of a run that was killed is none";
}

TEST_F(RunFolderTest, FilesThatAreNoneAreRefused) {
  const std::string precious = dir_.Write("precious", "text");
  for (const std::string name : {"metrics.jsonl", "validation.jsonl", "train.log"}) {
    for (const std::string resume : {"", " --resume auto"}) {
      std::filesystem::remove_all(dir_ / "out");
      ASSERT_EQ(Train(Out() + "--save-every 2").exit_code, 0);
      if (resume.empty()) std::filesystem::remove_all(dir_ / "out/checkpoints");
      const std::string path = dir_ / ("out/" + name);
      std::filesystem::remove(path);
      std::filesystem::create_symlink(precious, path);
      const RunResult link = Train(Out() + resume, "timeout 60");
      EXPECT_EQ(link.exit_code, 1) << link.out;
      EXPECT_THAT(link.err, HasSubstr("cannot write " + path + ": it is a symbolic link"));
      EXPECT_EQ(ReadFile(precious), "text");
      std::filesystem::remove(path);
      ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
      const RunResult fifo = Train(Out() + resume, "timeout 60");
      EXPECT_EQ(fifo.exit_code, 1) << fifo.out;
      EXPECT_THAT(fifo.err, HasSubstr("cannot write " + path + ": it is a FIFO"));
    }
  }
}

TEST_F(RunFolderTest, OutputThatCannotBeWrittenExitsWith1) {
  // Blocks of 1 KiB. Without checkpoints, so that the rows are the first to reach the limit.
  const RunResult limited = Train(Out() + "--steps 60", "ulimit -f 4;");
  EXPECT_EQ(limited.exit_code, 1);
  EXPECT_THAT(limited.err, AllOf(HasSubstr("File too large"), HasSubstr("out/")));
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  for (const std::string flags : {"", "--help"}) {
    const std::string command = std::string(APOGEE_TRAIN_GPT) + " " + Flags(flags) + " >/dev/full";
    const RunResult full = ::apogee::testing::RunProgram("sh -c '" + command + "'", "", dir_);
    EXPECT_EQ(full.exit_code, 1) << command;
    EXPECT_THAT(full.err, HasSubstr("cannot write to the standard output: No space left"));
  }
}

TEST_F(RunFolderTest, UnsignedFlagsDoNotWrapAround) {
  for (const std::string seed : {"-1", "18446744073709551616", "1e3", "1x"}) {
    const RunResult result = Train("--seed=" + seed);
    EXPECT_EQ(result.exit_code, 2) << seed;
    EXPECT_THAT(
        result.err,
        HasSubstr("--seed: needs a whole number from 0 to 18446744073709551615, got " + seed));
  }
  EXPECT_EQ(Train("--seed 18446744073709551615").exit_code, 0);
}

TEST_F(RunFolderTest, TextOfACheckpointIsNoCommandToTheTerminal) {
  {
    nn::Gpt2 model({.vocab_size = 256, .n_positions = 16, .n_embd = 16, .n_layer = 1, .n_head = 4});
    model.Initialize(CpuContext());
    const auto optimizer = ValueOrThrow(optim::MakeOptimizer("adamw", model.Parameters()));
    optim::LrScheduler scheduler(*optimizer, ValueOrThrow(optim::MakeLrSchedule("constant")));
    SingleRankPlugin plugin;
    Booster booster(plugin);
    booster.set_run_config(
        {.identity = {{"optimizer", "adamw"}}, .settings = {{"steps", "\x1b[2J"}}});
    std::ignore = booster.boost(model, *optimizer, {.scheduler = &scheduler});
    std::filesystem::create_directories(dir_ / "out");
    ASSERT_EQ(booster.save_training_state(dir_ / "out/checkpoints",
                                          {.step = 1, .extra = {{"data", "\x1b[2J"}}}),
              absl::OkStatus());
  }
  const RunResult result = Train(Out() + "--resume auto");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("is of a run on ?[2J; this one is on"));
  EXPECT_THAT(result.out + result.err, Not(HasSubstr("\x1b")));
}

}  // namespace run_folder_test
}  // namespace apogee
