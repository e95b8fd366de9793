// SPDX-License-Identifier: Apache-2.0

// Runs the program 08_train_moe on a tiny text: any way to spread experts over ranks trains the
// same model, the loads of experts are right, and bad input gets one answer and the right exit
// code.
#include <filesystem>
#include <string>

#include "apogee/tests/examples/text_program_test.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace train_moe_test {

using ::apogee::testing::ProgramResult;
using ::apogee::testing::ReadFile;
using ::apogee::testing::ReadRows;
using ::apogee::testing::TextProgramTest;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 8, kBlock = 16, kTopK = 2, kAccumulate = 2;

class TrainMoeTest : public TextProgramTest {
 protected:
  TrainMoeTest()
      : TextProgramTest(
            APOGEE_TRAIN_MOE,
            "--layers 2 --heads 4 --dim 32 --hidden 24 --experts 8 --block 16 --batch 8 "
            "--accumulate 2 --steps 8 --lr 0.01 --precision f64") {}
};

TEST_F(TrainMoeTest, EveryLayoutTrainsTheSameModelWithTheSameLoads) {
  const ProgramResult one = Train("--ranks 1 --ep 1 --out " + (dir_ / "one"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("loads of experts: layer 0 "));
  const auto want = ReadRows(dir_ / "one/metrics.jsonl");
  const auto want_loads = ReadRows(dir_ / "one/expert_loads.jsonl");
  ASSERT_EQ(want.size(), 8u);
  ASSERT_EQ(want_loads.size(), 8u);
  EXPECT_LT(want[7]["loss"], 0.9 * static_cast<double>(want[0]["loss"]));
  for (const auto& row : want_loads) {
    ASSERT_EQ(row["loads"].size(), 2u);
    for (const auto& layer : row["loads"]) {
      ASSERT_EQ(layer.size(), 8u);
      int64_t sum = 0;
      for (const auto& load : layer) sum += static_cast<int64_t>(load);
      EXPECT_EQ(sum, kBatch * kBlock * kTopK * kAccumulate);
    }
  }
  for (const std::string flags : {"", "--ranks 2 --zero 2", "--ranks 4 --ep 4 --zero 0",
                                  "--ranks 4 --ep 2 --tp 2", "--ranks 2 --ep 1 --zero 3"}) {
    const ProgramResult result = Train(flags + " --out " + (dir_ / "cut"));
    ASSERT_EQ(result.exit_code, 0) << flags << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(result.out, ReadFile(dir_ / "cut/train.log")) << "rank 0 speaks for all";
    EXPECT_EQ(ReadRows(dir_ / "cut/expert_loads.jsonl"), want_loads) << flags;
    SCOPED_TRACE(flags);
    ExpectSameSteps("cut", "one");
  }
}

TEST_F(TrainMoeTest, LoadsOfAResumedRunContinue) {
  const std::string whole = " --save-every 4 --out " + (dir_ / "whole");
  ASSERT_EQ(Train(whole).exit_code, 0);
  const auto want = ReadRows(dir_ / "whole/expert_loads.jsonl");
  std::filesystem::copy(dir_ / "whole", dir_ / "again", std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(dir_ / "again/checkpoints/step-00000008");
  const ProgramResult result = Train("--out " + (dir_ / "again") + " --resume auto");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(ReadRows(dir_ / "again/expert_loads.jsonl"), want);
  EXPECT_THAT(ReadFile(dir_ / "again/expert_loads.svg"), HasSubstr("step 5"));
}

TEST_F(TrainMoeTest, ThePictureIsPartOfTheReport) {
  ASSERT_EQ(Train("--ranks 2 --report --out " + (dir_ / "out")).exit_code, 0);
  const std::string svg = ReadFile(dir_ / "out/expert_loads.svg");
  EXPECT_THAT(svg, HasSubstr("expert 7, step 8: "));
  EXPECT_THAT(svg, HasSubstr("layer 1"));
  EXPECT_THAT(ReadFile(dir_ / "out/report.html"), HasSubstr("Loads of experts"));
}

TEST_F(TrainMoeTest, BadInput) {
  ExpectRefused("--top-k 9", 2, "top_k");
  ExpectRefused("--ep 0", 2, "--ep: needs a whole number from 1 to 1e9, got 0");
  ExpectRefused("--heads 3", 2, "--dim must be an even multiple of --heads, got 32 and 3");
  ExpectRefused("--ep 3 --ranks 3 --batch 9", 1, "ep_size 3 does not divide the 8 experts", 2);
  ExpectRefused("--ep 4 --ranks 2", 1, "ep_size 4 does not divide the world of 2 ranks", 2);
}

}  // namespace train_moe_test
}  // namespace apogee
