// SPDX-License-Identifier: Apache-2.0

// apogee options: the options of an optimizer as they are in the registry.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "apogee/optim/registry.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace options_test {

using apogee::testing::Command;
using apogee::testing::CommandResult;
using ::testing::HasSubstr;

TEST(OptionsTest, EachOptionHasItsDefaultAndALineOfText) {
  const CommandResult result = Command("options lion");
  EXPECT_EQ(result.code, 0);
  const optim::OptionMap defaults = ValueOrThrow(optim::OptimizerDefaults("lion"));
  const optim::OptionMap help = ValueOrThrow(optim::BuiltInOptimizers().Help("lion"));
  EXPECT_EQ(std::ranges::count(result.out, '\n'), std::ssize(defaults));
  for (const auto& [name, value] : defaults) {
    EXPECT_THAT(result.out, HasSubstr(name + " "));
    EXPECT_THAT(result.out, HasSubstr(" " + value + " "));
    EXPECT_THAT(result.out, HasSubstr("  " + help.at(name) + "\n"));
  }
}

TEST(OptionsTest, AllNamesAndAWrongOne) {
  std::string names;
  for (const std::string& name : optim::OptimizerNames()) names += name + "\n";
  EXPECT_EQ(Command("options").out, names);
  const CommandResult wrong = Command("options lyon");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.out, HasSubstr("did you mean \"lion\""));
}

}  // namespace options_test
}  // namespace apogee::tools
