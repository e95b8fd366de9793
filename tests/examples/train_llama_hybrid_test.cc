// SPDX-License-Identifier: Apache-2.0

// Runs the program 03_train_llama_hybrid on a tiny text: any cut over ranks trains the same model,
// the picture of the plan is well formed, and bad input gets one answer and the right exit code.
#include <algorithm>
#include <filesystem>
#include <string>

#include "apogee/tests/examples/text_program_test.h"
#include "apogee/tests/support/files/xml.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace train_llama_hybrid_test {

using ::apogee::testing::ParseXml;
using ::apogee::testing::ProgramResult;
using ::apogee::testing::ReadFile;
using ::apogee::testing::ReadRows;
using ::apogee::testing::TextProgramTest;
using ::testing::HasSubstr;

class TrainLlamaHybridTest : public TextProgramTest {
 protected:
  TrainLlamaHybridTest()
      : TextProgramTest(
            APOGEE_TRAIN_LLAMA,
            "--layers 1 --heads 4 --kv-heads 2 --dim 32 --hidden 48 --block 16 --batch 8 "
            "--steps 12 --lr 0.01 --sample 20 --precision f64") {}
};

// The weights of 4 heads of 8 have the shapes of those of 2 heads of 16.
TEST_F(TrainLlamaHybridTest, OtherHeadsOnResumeAreRefused) {
  const std::string flags = "--ranks 2 --zero-stage 0 --sample 0 --out " + (dir_ / "out") + " ";
  ASSERT_EQ(Train(flags + "--save-every 12").exit_code, 0);
  const ProgramResult other =
      Train(flags + "--resume auto --steps 13 --heads 2 --kv-heads 1 --tp-size 1 --lr 0.02");
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err,
              HasSubstr("model.num_attention_heads: saved with \"4\", this run has \"2\""));
  const ProgramResult same = Train(flags + "--resume auto --steps 13 --lr 0.02");
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("lr 0.02 has no effect: the saved run's 0.01 is kept"));
}

TEST_F(TrainLlamaHybridTest, EveryCutTrainsTheSameModel) {
  const ProgramResult one = Train("--ranks 1 --tp-size 1 --zero-stage 0 --out " + (dir_ / "one"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto want = ReadRows(dir_ / "one/metrics.jsonl");
  ASSERT_EQ(want.size(), 12u);
  EXPECT_LT(want[11]["loss"], 0.8 * static_cast<double>(want[0]["loss"]));
  for (const std::string flags :
       {"--ranks 4 --tp-size 2 --zero-stage 2", "--ranks 2 --tp-size 2 --zero-stage 0",
        "--ranks 4 --tp-size 2 --zero-stage 1 --batch 4 --accumulate 2",
        "--ranks 4 --tp-size 1 --zero-stage 2", "--ranks 4 --tp-size 2 --zero-stage 3"}) {
    const ProgramResult result = Train(flags + " --out " + (dir_ / "cut"));
    ASSERT_EQ(result.exit_code, 0) << flags << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(result.out, ReadFile(dir_ / "cut/train.log")) << "rank 0 speaks for all";
    EXPECT_EQ(result.out.substr(result.out.find("sample:")),
              one.out.substr(one.out.find("sample:")));
    const auto got = ReadRows(dir_ / "cut/metrics.jsonl");
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(want[i]["loss"], got[i]["loss"], 1e-8) << flags;
      EXPECT_NEAR(want[i]["grad_norm"], got[i]["grad_norm"], 1e-8) << flags;
    }
    const auto valid = ReadRows(dir_ / "one/validation.jsonl")[0],
               others = ReadRows(dir_ / "cut/validation.jsonl")[0];
    EXPECT_NEAR(valid["loss"], others["loss"], 1e-8) << flags;
    EXPECT_EQ(valid["tokens"], others["tokens"]);
  }
}

TEST_F(TrainLlamaHybridTest, AResumedRunIsTheOneThatNeverStopped) {
  for (const std::string precision : {"f32", "bf16"}) {
    const std::string flags = "--precision " + precision + " --out " + (dir_ / precision);
    const ProgramResult one_go = Train(flags + "/one_go --save-every 6");
    ASSERT_EQ(one_go.exit_code, 0) << one_go.err;
    const ProgramResult rest =
        Train(flags + "/rest --resume " + (dir_ / precision) + "/one_go/checkpoints");
    ASSERT_EQ(rest.exit_code, 0) << rest.err;
    EXPECT_THAT(rest.out, HasSubstr("at step 12\n")) << "all is done";
    std::filesystem::rename(dir_ / (precision + "/one_go/checkpoints/step-00000012"),
                            dir_ / (precision + "/last"));
    const ProgramResult half =
        Train(flags + "/rest --resume " + (dir_ / precision) + "/one_go/checkpoints");
    ASSERT_EQ(half.exit_code, 0) << half.err;
    EXPECT_THAT(half.out, HasSubstr("at step 6\n"));
    const auto want = ReadRows(dir_ / (precision + "/one_go/metrics.jsonl"));
    const auto got = ReadRows(dir_ / (precision + "/rest/metrics.jsonl"));
    ASSERT_EQ(got.size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      for (const std::string key : {"step", "loss", "lr", "grad_norm"}) {
        EXPECT_EQ(got[i][key], want[6 + i][key]) << precision << " " << i;
      }
    }
    EXPECT_EQ(half.out.substr(half.out.find("sample:")),
              one_go.out.substr(one_go.out.find("sample:")));
  }
}

TEST_F(TrainLlamaHybridTest, TrainsInEveryPrecision) {
  for (const std::string precision : {"f32", "bf16", "fp16", "auto"}) {
    const ProgramResult result = Train("--precision " + precision + " --out " + (dir_ / "out"));
    ASSERT_EQ(result.exit_code, 0) << precision << result.err;
    const auto rows = ReadRows(dir_ / "out/metrics.jsonl");
    EXPECT_LT(rows.back()["loss"], 0.8 * static_cast<double>(rows[0]["loss"])) << precision;
    EXPECT_EQ(result.out.find("auto"), std::string::npos);
  }
}

TEST_F(TrainLlamaHybridTest, DrawsThePlan) {
  const ProgramResult result = Train("--steps 1 --plan-svg " + (dir_ / "plan.svg"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto elements = ParseXml(ReadFile(dir_ / "plan.svg"));
  ASSERT_GT(elements.size(), 1u);
  EXPECT_EQ(elements[0].name, "svg");
  EXPECT_EQ(elements[1].text, "Sharding plan of llama, f64: tp 2, dp 2, ZeRO stage 2");
  int64_t head = 0;
  for (const auto& element : elements) {
    const auto& a = element.attributes;
    if (!a.contains("data-elements") || a.at("data-parameter") != "lm_head.weight") continue;
    head += std::stoll(a.at("data-elements"));
  }
  EXPECT_EQ(head, 256 * 32) << "one rank has each element";
  const ProgramResult refused = Train("--plan-svg " + text_ + "/plan.svg");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("rank 0: cannot write " + text_ + "/plan.svg: "));
}

TEST_F(TrainLlamaHybridTest, WrongUsageExitsWith2) {
  ExpectRefused("--tp-siez 2", 2, "unknown flag --tp-siez (did you mean --tp-size?)");
  ExpectRefused("--tp-size 0", 2, "--tp-size: needs a whole number from 1 to 1e9, got 0");
  ExpectRefused("--zero-stage 4", 2, "got 4");
  ExpectRefused("--precision bf61", 2, "unknown precision \"bf61\" (did you mean \"bf16\"?)");
  ExpectRefused("--ranks 0", 2, "--ranks: needs a whole number from 1 to 1e9, got 0");
  ExpectRefused("--heads 3", 2, "num_attention_heads must be a multiple of num_key_value_heads");
  ExpectRefused("--batch 3", 2, "use --batch 2 or 4");
  ExpectRefused("--optimizer adamv", 2, "(did you mean \"adamw\"?)");
  ExpectRefused("--optim.beta=1", 2, "unknown option \"beta\" (did you mean \"betas\"?)");
  ExpectRefused("--prompt ''", 2, "--prompt must not be empty");
  ExpectRefused("stray", 2, "unexpected argument \"stray\"");
}

TEST_F(TrainLlamaHybridTest, WhatDoesNotFitIsListedAndExitsWith1) {
  ExpectRefused("--ranks 3 --tp-size 4", 1, "tp_size 4 does not divide the world of 3 ranks", 5);
  ExpectRefused("--ranks 3 --tp-size 4", 1, "tp 4 does not divide its 2 key-value heads", 5);
  ExpectRefused("--data " + (dir_ / "none"), 1, "/none does not exist; give a text file");
}

}  // namespace train_llama_hybrid_test
}  // namespace apogee
