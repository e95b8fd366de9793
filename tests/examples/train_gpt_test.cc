// SPDX-License-Identifier: Apache-2.0

// Runs the program 01_train_gpt on a tiny text: it learns, repeats itself bit by bit, writes files
// that parse, and answers bad input with one sentence and the right exit code.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "apogee/tests/examples/train_gpt_run.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/files/tfrecord.h"
#include "apogee/tests/support/program.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace train_gpt_test {

using ::apogee::testing::ReadFile;
using ::apogee::testing::TrainGptTest;
using ::testing::HasSubstr;

using RunResult = ::apogee::testing::ProgramResult;

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
      const size_t begin = out.find("gpt2, ");
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
  // Without AVX-512, oneDNN's products allocate buffers of their own.
#if defined(__x86_64__)
  const double tolerance = __builtin_cpu_supports("avx512f") != 0 ? 0.03 : 0.08;
#else
  const double tolerance = 0.08;
#endif
  EXPECT_NEAR(ledger, process, tolerance * process) << result.out;
}

TEST_F(TrainGptTest, ThePlanIsTheMeasuredMemory) {
  const RunResult result =
      Train("--ranks 2 --plugin zero2 --accumulate 2 --steps 3 --sample 1 --out " + (dir_ / "out"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("memory: planned "));
  EXPECT_THAT(result.out, HasSubstr("\n  parameter: planned "));
  const auto plan = nlohmann::json::parse(ReadFile(dir_ / "out/plan.json"));
  ASSERT_EQ(plan["ranks"].size(), 2u);
  const auto near = [](const nlohmann::json& peaks, double tolerance) {
    const double measured = peaks["measured_peak_bytes"];
    EXPECT_NEAR(peaks["planned_peak_bytes"], measured, tolerance * measured) << peaks;
  };
  near(plan, 0.02);
  for (const auto& rank : plan["ranks"]) {
    near(rank, 0.02);
    for (const char* exact : {"parameter", "optimizer_state"}) near(rank["categories"][exact], 0);
    EXPECT_GT(rank["categories"]["parameter"]["measured_peak_bytes"], 1000);
  }
  // A run with other losses would show that planning had changed the run.
  const auto rows = Rows("out/metrics.jsonl");
  EXPECT_EQ(rows.size(), 3u);
  for (const auto& row : rows) {
    EXPECT_GT(row["share_of_peak"], 0);
    EXPECT_LT(row["share_of_peak"], 1.5);  // two cores may be faster than one measured product
  }
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
  ExpectWrongUsage("--plugin hybrid --zero-stage 4", "stage must be 0 (nothing sharded)");
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
