// SPDX-License-Identifier: Apache-2.0

// Runs the programs of 06_own_model: models that are not the library's train the same under every
// plugin, and learn.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "apogee/tests/support/program.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace own_model_test {

using ::apogee::testing::ProgramResult;
using ::apogee::testing::ReadRows;
using ::apogee::testing::RunProgram;
using ::apogee::testing::TempDir;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

// The numbers that follow `word` in a text.
std::vector<double> After(const std::string& word, const std::string& text) {
  std::vector<double> numbers;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    numbers.push_back(std::strtod(text.c_str() + at + word.size(), nullptr));
  }
  return numbers;
}

TEST(OwnModelTest, ClassifiesImagesUnderEveryPlugin) {
  const TempDir dir;
  const auto train = [&](const std::string& flags) {
    return RunProgram(APOGEE_CLASSIFY_IMAGES,
                      "--precision f64 --steps 20 --batch 12 --channels 4 " + flags, dir);
  };
  const ProgramResult one = train("");
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const std::vector<double> want = After("loss", one.out);
  ASSERT_EQ(want.size(), 2u);
  EXPECT_LT(want[1], want[0]);
  for (const std::string flags :
       {"--ranks 2", "--ranks 3 --plugin zero1", "--ranks 2 --plugin zero2",
        "--ranks 4 --plugin gemini", "--ranks 2 --plugin hybrid --plugin.tp_size=2",
        "--ranks 4 --plugin hybrid --plugin.tp_size=2 --plugin.stage=3"}) {
    const ProgramResult result = train(flags);
    ASSERT_EQ(result.exit_code, 0) << flags << result.err;
    EXPECT_THAT(After("loss", result.out), Pointwise(DoubleNear(1e-8), want)) << flags;
    EXPECT_EQ(result.out, one.out) << flags;
  }
  // Its batch norms use the pipeline's micro-batches.
  const ProgramResult pipeline =
      train("--ranks 2 --plugin hybrid --plugin.pp_size=2 --plugin.num_microbatches=2");
  ASSERT_EQ(pipeline.exit_code, 0) << pipeline.err;
  EXPECT_LT(After("loss", pipeline.out)[1], want[0]);
}

TEST(OwnModelTest, LearnsImages) {
  const TempDir dir;
  const ProgramResult result = RunProgram(APOGEE_CLASSIFY_IMAGES, "--ranks 2 --steps 100", dir);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const size_t end = result.out.find(" % of new images");
  ASSERT_NE(end, std::string::npos) << result.out;
  const size_t begin = result.out.rfind('\n', end) + 1;
  EXPECT_GT(std::stod(result.out.substr(begin, end - begin)), 95);
}

TEST(OwnModelTest, TrainsRecurrentLayersUnderEveryPlugin) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i % 40) + " of the text\n";
  const std::string file = dir.Write("text.txt", text);
  const auto train = [&](const std::string& flags) {
    return RunProgram(
        APOGEE_RECURRENT_TEXT,
        "--data " + file +
            " --precision f64 --steps 10 --lr 0.03 --batch 12 --block 12 --dim 12 --out " +
            (dir / "out") + " " + flags,
        dir);
  };
  const auto losses = [&] {
    std::vector<double> all;
    for (const auto& row : ReadRows(dir / "out/metrics.jsonl")) {
      all.push_back(static_cast<double>(row.at("loss")));
    }
    std::filesystem::remove_all(dir / "out");
    return all;
  };
  const ProgramResult one = train("");
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const std::vector<double> want = losses();
  ASSERT_EQ(want.size(), 10u);
  EXPECT_LT(want[9], 0.9 * want[0]);
  for (const std::string flags :
       {"--ranks 2", "--ranks 3 --plugin zero2", "--ranks 2 --plugin gemini",
        "--ranks 4 --plugin hybrid --tp-size 2 --zero-stage 1",
        "--ranks 2 --plugin hybrid --plugin.pp_size=2 --plugin.num_microbatches=2",
        "--ranks 2 --plugin hybrid --plugin.pp_size=2 --plugin.num_microbatches=2 "
        "--plugin.schedule=zbv"}) {
    const ProgramResult result = train(flags);
    ASSERT_EQ(result.exit_code, 0) << flags << result.err;
    EXPECT_THAT(losses(), Pointwise(DoubleNear(1e-8), want)) << flags;
  }
}

TEST(OwnModelTest, SaysWhatDoesNotFit) {
  const TempDir dir;
  const ProgramResult result =
      RunProgram(APOGEE_CLASSIFY_IMAGES, "--ranks 3 --plugin hybrid --plugin.tp_size=3", dir);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("block*.conv1"));
  EXPECT_EQ(RunProgram(APOGEE_CLASSIFY_IMAGES, "--plugin zero9", dir).exit_code, 1);
}

}  // namespace own_model_test
}  // namespace apogee
