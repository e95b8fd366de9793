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
        Command("plan " + path + " --ranks 2 --memory 1GiB --batch 4 --precision bf16 --check");
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_THAT(result.out, AllOf(HasSubstr("37,120 parameters, bf16, adamw; a step has 4 samples"),
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
  expect("gpt2 --set model_type=mamba", 2, "mamba");
  expect("gpt2 --tokens 2000", 2, "tokens is 2000, the model takes at most 1024");
  expect("gpt2 --batch 7 --accumulate 2", 2, "batch 7 is not divisible by accumulate 2");
  expect("gpt2 --ranks 0", 2, "--ranks");
  expect("gpt2 --precision bf17", 2, "bf17");
  expect("gpt2 --flops fast", 2, "--flops needs --memory-bandwidth");
  const std::string declared = "gpt2 --flops 600T --memory-bandwidth 3TB/s ";
  expect("gpt2 --memory-bandwidth 3TB/s", 2, "part of a declared machine; give --flops, too");
  expect(declared + "--ranks 2", 2, "needs --local-link, such as 450GB/s");
  expect(declared + "--ranks 16 --local-link 450GB/s", 2, "needs --link, such as 400Gb/s");
  expect(declared + "--measure", 2, "leave one of them out");
  expect("gpt2 --flops fast --memory-bandwidth 3TB/s", 2,
         "--flops is \"fast\"; it must be a rate above 0 such as 400T");
  expect("gpt2 --flops 1T --memory-bandwidth 3TB", 2, "--memory-bandwidth is \"3TB\"");
  expect(declared + "--kernel-time 3", 2, "a time above 0 such as 5us");
  expect("gpt2 --rates " + (dir / "rates.json"), 2, "there is no such file; add --measure");
  std::ofstream(dir / "rates.json") << "{";
  expect("gpt2 --rates " + (dir / "rates.json"), 1, "not a file of measured rates");
  expect(declared + "--scale 4,2 --local-link 1GB/s", 2, "must be positive and ascend");
  expect("gpt2 --only zero9", 2, "has \"zero9\" in its name");
}

TEST(PlanCommandTest, ADeclaredMachine) {
  const TempDir dir;
  std::ofstream(dir / "config.json") << kConfig;
  const std::string words =
      "plan " + dir.path() +
      " --batch 128 --flops 1T --memory-bandwidth 100GB/s --local-link 10GB/s "
      "--link 80Gb/s --ranks-per-machine 4 ";
  EXPECT_THAT(Command(words + "--ranks 64 --only ddp --rank-mttf 64h --save-time 1s").out,
              AllOf(HasSubstr("step"), HasSubstr("with the rates of a declared machine"),
                    HasSubstr("Failures: with 64 ranks, one every 60.0 min"),
                    HasSubstr("Save every 84.9 s")));
  EXPECT_THAT(Command(words + "--scale 2,8 --only ddp").out,
              AllOf(HasSubstr("Strong scaling"), HasSubstr("Weak scaling"), HasSubstr("512")));
  EXPECT_THAT(Command(words + "--scale 2,8 --only ddp --json").out,
              AllOf(HasSubstr("{\"strong\": ["), HasSubstr("\"tokens_per_second\"")));
}

}  // namespace plan_command_test
}  // namespace apogee::tools
