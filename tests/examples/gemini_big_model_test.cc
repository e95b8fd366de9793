// SPDX-License-Identifier: Apache-2.0

// Runs the program 04_gemini_big_model on a tiny text: any placement trains the same model within
// its budget, and bad input gets one answer and the right exit code.
#include <algorithm>
#include <filesystem>
#include <string>

#include "apogee/tests/examples/text_program_test.h"
#include "apogee/tests/support/files/trace_file.h"
#include "apogee/tests/support/files/xml.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace gemini_big_model_test {

using ::apogee::testing::ParseXml;
using ::apogee::testing::ProgramResult;
using ::apogee::testing::ReadFile;
using ::apogee::testing::TextProgramTest;
using ::testing::HasSubstr;

class GeminiBigModelTest : public TextProgramTest {
 protected:
  GeminiBigModelTest()
      : TextProgramTest(APOGEE_GEMINI_BIG_MODEL,
                        "--layers 4 --heads 2 --dim 32 --block 16 --batch 4 --steps 6 --lr 0.01 "
                        "--precision f32 --chunk-bytes 5000 --log-every 1") {}
  // "step 1 loss 5.5432", without times.
  static std::vector<std::string> Losses(const std::string& out) {
    std::vector<std::string> losses;
    for (size_t at = 0; (at = out.find("  loss ", at)) != std::string::npos; ++at) {
      losses.push_back(out.substr(at + 7, 6));
    }
    return losses;
  }
};

TEST_F(GeminiBigModelTest, EveryPlacementTrainsTheSameModel) {
  const ProgramResult want = Train("--ranks 1 --placement static");
  ASSERT_EQ(want.exit_code, 0) << want.err;
  const std::vector<std::string> losses = Losses(want.out);
  ASSERT_EQ(losses.size(), 6U) << want.out;
  EXPECT_LT(std::stod(losses[5]), 0.9 * std::stod(losses[0]));
  for (const std::string flags :
       {"--ranks 2", "--ranks 1 --budget-percent 50", "--ranks 2 --budget-percent 100",
        "--ranks 2 --placement static --offload-optim-frac 1 --offload-param-frac 0.5",
        "--ranks 2 --placement static --shard-param-frac 0.5"}) {
    const ProgramResult got = Train(flags);
    EXPECT_EQ(got.exit_code, 0) << flags << "\n" << got.err;
    EXPECT_EQ(Losses(got.out), losses) << flags;
    EXPECT_EQ(got.err, "") << flags;
  }
}

TEST_F(GeminiBigModelTest, DrawsTheMap) {
  const ProgramResult result = Train("--map-svg " + (dir_ / "map.svg"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("budget"));
  int bars = 0;
  for (const auto& element : ParseXml(ReadFile(dir_ / "map.svg"))) {
    if (!element.attributes.contains("data-chunk")) continue;
    ++bars;
    EXPECT_LT(std::stoi(element.attributes.at("data-from")),
              std::stoi(element.attributes.at("data-to")));
  }
  EXPECT_GT(bars, 16);
}

TEST_F(GeminiBigModelTest, Traces) {
  const ProgramResult want = Train("--ranks 2");
  const ProgramResult result = Train("--ranks 2 --trace " + (dir_ / "run.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Losses(result.out), Losses(want.out));
  const testing::TraceFile file(dir_ / "run.json");
  for (int rank = 0; rank < 2; ++rank) {
    int steps = 0;
    for (const auto& span : file.Spans(rank, "compute")) steps += span.at("name") == "step";
    EXPECT_EQ(steps, 6);
    EXPECT_GT(file.Spans(rank, "communication: [0 1]").size(), 6u);
  }
  const ProgramResult failed = Train("--trace " + (dir_ / "missing/run.json"));
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_EQ(failed.out, "") << "before training";
  EXPECT_THAT(failed.err, HasSubstr("--trace: cannot write the trace "));
  EXPECT_EQ(std::count(failed.err.begin(), failed.err.end(), '\n'), 1) << failed.err;
}

TEST_F(GeminiBigModelTest, BadInput) {
  const auto expect = [this](const std::string& flags, int exit_code, const std::string& message) {
    const ProgramResult result = Train(flags);
    EXPECT_EQ(result.exit_code, exit_code) << flags << "\n" << result.out;
    EXPECT_THAT(result.err, HasSubstr(message)) << flags;
  };
  expect("--budget-percent 0.1", 1, "needs at least");
  expect("--placement dynamic", 2, "placement_policy");
  expect("--placement static --offload-optim-frac 2", 2, "must be between 0 and 1, got 2");
  expect("--shard-param-frac 0.5", 2, "\"auto\" decides by device_budget_bytes");
  expect("--batch 3", 2, "--ranks");
}

}  // namespace gemini_big_model_test
}  // namespace apogee
