// SPDX-License-Identifier: Apache-2.0

// apogee new: what it writes, and what it refuses. scripts/check_install.sh builds such a project.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace new_test {

using apogee::testing::Command;
using apogee::testing::CommandResult;
using apogee::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(NewTest, WritesTheTemplateUnderAnotherName) {
  const TempDir dir;
  const CommandResult result = Command("new " + (dir / "spirals2/"));
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("cmake --build build"));
  size_t num_files = 0;
  for (const auto& file : std::filesystem::directory_iterator(APOGEE_NEW_TEMPLATE)) {
    const std::string want = Read(file.path());
    const std::string got = Read(dir / ("spirals2/" + file.path().filename().string()));
    EXPECT_EQ(std::ranges::count(got, '\n'), std::ranges::count(want, '\n')) << file.path();
    EXPECT_THAT(got, Not(HasSubstr("my_app")));
    EXPECT_THAT(got, Not(HasSubstr("MY_APP")));
    ++num_files;
  }
  EXPECT_EQ(num_files, 6u);
  EXPECT_THAT(Read(dir / "spirals2/CMakeLists.txt"),
              HasSubstr("add_executable(spirals2 main.cc)\n"
                        "target_link_libraries(spirals2 PRIVATE apogee::apogee)\n"));
  EXPECT_THAT(Read(dir / "spirals2/train.h"), HasSubstr("#ifndef SPIRALS2_TRAIN_H_\n"));
  EXPECT_THAT(Read(dir / "spirals2/main.cc"), HasSubstr("\"spirals2: %s\\n\""));
}

TEST(NewTest, AFolderThatExistsStaysAsItIs) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "mine");
  std::ofstream(dir / "mine/main.cc") << "mine";
  const CommandResult result = Command("new " + (dir / "mine"));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.out, HasSubstr("mine"));
  EXPECT_EQ(Read(dir / "mine/main.cc"), "mine");
  EXPECT_EQ(Command("new " + (dir / "absent/mine")).code, 2);
}

TEST(NewTest, NamesThatCannotBeOnes) {
  const TempDir dir;
  for (const std::string name : {"2fast", "my-app", "My", "a__b", "a_", "test", "apogee", "."}) {
    const CommandResult result = Command("new " + (dir / name));
    EXPECT_EQ(result.code, 2) << name;
    EXPECT_THAT(result.out, HasSubstr("apogee new: \"" + name + "\" "));
  }
  EXPECT_EQ(Command("new").code, 2);
}

}  // namespace new_test
}  // namespace apogee::tools
