// SPDX-License-Identifier: Apache-2.0

// Runs the program 05_train_3d on a tiny text: any cut over ranks trains the same model, a trace
// tells how long stages waited, and bad input gets one answer and the right exit code.
#include <algorithm>
#include <filesystem>
#include <string>

#include "apogee/tests/examples/text_program_test.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace train_3d_test {

using ::apogee::testing::ProgramResult;
using ::apogee::testing::ReadFile;
using ::apogee::testing::ReadRows;
using ::apogee::testing::TextProgramTest;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Train3dTest : public TextProgramTest {
 protected:
  Train3dTest()
      : TextProgramTest(
            APOGEE_TRAIN_3D,
            "--layers 4 --heads 4 --kv-heads 2 --dim 32 --hidden 48 --block 16 --batch 8 "
            "--steps 10 --lr 0.01 --precision f64 --max-norm 1") {}
};

TEST_F(Train3dTest, EveryCutTrainsTheSameModel) {
  const ProgramResult one = Train("--ranks 1 --tp 1 --pp 1 --out " + (dir_ / "one"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto want = ReadRows(dir_ / "one/metrics.jsonl");
  ASSERT_EQ(want.size(), 10u);
  EXPECT_LT(want[9]["loss"], 0.8 * static_cast<double>(want[0]["loss"]));
  for (const std::string flags :
       {"", "--schedule interleaved", "--schedule zbv --zero 2", "--ranks 4 --tp 1 --pp 4 --zero 0",
        "--ranks 2 --tp 1 --schedule interleaved --chunks 3", "--ranks 2 --tp 2 --pp 1 --zero 0"}) {
    const ProgramResult result = Train(flags + " --out " + (dir_ / "cut"));
    ASSERT_EQ(result.exit_code, 0) << flags << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(result.out, ReadFile(dir_ / "cut/train.log")) << "rank 0 speaks for all";
    SCOPED_TRACE(flags);
    ExpectSameSteps("cut", "one");
  }
}

TEST_F(Train3dTest, ATraceTellsTheBubble) {
  const std::string trace = dir_ / "run.json";
  const ProgramResult result = Train("--trace " + trace);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(": pp 2, tp 2, dp 2, ZeRO stage 1, 1f1b with 4 micro-batches"));
  EXPECT_THAT(result.out, ContainsRegex("pipeline: 10 steps, bubble [0-9]+\\.[0-9] %\n$"));
  const ProgramResult one = Train("--ranks 1 --tp 1 --pp 1 --trace " + trace);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_THAT(one.out, Not(HasSubstr("pipeline:")));
  const auto parameters = [](const std::string& out) {
    const size_t begin = out.find("Llama, ");
    return out.substr(begin, out.find(" parameters") - begin);
  };
  EXPECT_EQ(parameters(result.out), parameters(one.out)) << "of the whole model";
}

TEST_F(Train3dTest, WrongUsageExitsWith2) {
  ExpectRefused("--ppp 2", 2, "unknown flag --ppp");
  ExpectRefused("--pp 0", 2, "--pp: needs a whole number from 1 to 1e9, got 0");
  ExpectRefused("--schedule interleave", 2, "(did you mean \"interleaved\"?)");
  ExpectRefused("--microbatches 1", 2, "num_microbatches 1 is less than pp_size 2");
  ExpectRefused("--zero 3", 2, "with pp_size 2 it must be 0 to 2");
  ExpectRefused("--batch 3", 2, "--pp give; use --batch 2 or 4");
}

TEST_F(Train3dTest, WhatDoesNotFitExitsWith1) {
  ExpectRefused("--ranks 6", 1, "pp_size 2 x tp_size 2 = 4 does not divide the world of 6 ranks",
                2);
  ExpectRefused("--layers 1 --schedule zbv", 1,
                "the model has 3 pieces, which cannot be cut into 4", 2);
  ExpectRefused("--trace " + text_ + "/run.json", 1, "--trace: ");
}

}  // namespace train_3d_test
}  // namespace apogee
