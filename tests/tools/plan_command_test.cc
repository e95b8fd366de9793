// SPDX-License-Identifier: Apache-2.0

// apogee plan: its words, files and errors. tests/plan has the numbers.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace plan_command_test {

using apogee::testing::Command;
using apogee::testing::CommandResult;
using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kConfig =
    R"({"model_type": "gpt2", "vocab_size": 300, "n_positions": 64, "n_layer": 2, "n_head": 2,
        "n_embd": 32})";

TEST(PlanCommandTest, AFolderAFileAndFields) {
  const TempDir dir;
  std::ofstream(dir / "config.json") << kConfig;
  for (const std::string& path : {dir.path(), dir / "config.json"}) {
    const CommandResult result =
        Command("plan " + path + " --ranks 2 --memory 1GiB --batch 4 --precision bf16 --measure");
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_THAT(result.out, AllOf(HasSubstr("37,120 parameters, bf16, adamw; 2 ranks"),
                                  HasSubstr("fits 1.0 GiB"),
                                  HasSubstr("DdpPlugin plugin(world.group(), training);"),
                                  HasSubstr("Peaks of a real run:")));
  }
  EXPECT_THAT(Command("plan " + dir.path() + " --set n_layer=4").out,
              HasSubstr("62,528 parameters"));
}

TEST(PlanCommandTest, WrongInput) {
  const TempDir dir;
  std::ofstream(dir / "cut.json") << R"({"model_type": "gpt2")";
  const auto expect = [](const std::string& words, int code, const std::string& text) {
    const CommandResult result = Command("plan " + words);
    EXPECT_EQ(result.code, code) << words;
    EXPECT_THAT(result.out, HasSubstr(text));
  };
  expect("gpt-2", 2, "did you mean \"gpt2\"");
  expect(dir / "missing/config.json", 2, "there is no such file or folder");
  expect(dir / "cut.json", 1, "cut.json");
  expect("gpt2 --memory 80GX", 2, "--memory is \"80GX\"; it must be a size above 0 such as 80GiB");
  expect("gpt2 --memory 0", 2, "it must be a size above 0");
  expect("gpt2 --set n_layer", 2, "--set takes KEY=VALUE, got \"n_layer\"");
  expect("gpt2 --set n_layer=-3", 2, "n_layer");
  expect("gpt2 --set model_type=mixtral", 2, "mixtral");
  expect("gpt2 --tokens 2000", 2, "tokens is 2000, the model takes at most 1024");
  expect("gpt2 --batch 7 --accumulate 2", 2, "batch 7 is not divisible by accumulate 2");
  expect("gpt2 --ranks 0", 2, "--ranks");
  expect("gpt2 --precision bf17", 2, "bf17");
  expect("gpt2 --only zero9", 2, "has \"zero9\" in its name");
}

}  // namespace plan_command_test
}  // namespace apogee::tools
