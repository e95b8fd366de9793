// SPDX-License-Identifier: Apache-2.0

// Runs the `apogee` command; the test's target defines APOGEE_COMMAND.
//
//   const CommandResult result = Command("inspect --verify " + folder);
//   EXPECT_EQ(result.code, 0) << result.out;
#ifndef APOGEE_TESTS_SUPPORT_TOOL_COMMAND_H_
#define APOGEE_TESTS_SUPPORT_TOOL_COMMAND_H_

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace apogee::testing {

struct CommandResult {
  int code;         // -1: it did not exit
  std::string out;  // stdout and stderr
};

// `settings`: environment variables, "NAME=value NAME=value".
inline CommandResult Command(const std::string& arguments, const std::string& settings = "") {
  FILE* pipe = popen(
      (settings + " " + std::string(APOGEE_COMMAND) + " " + arguments + " 2>&1").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  CommandResult result;
  std::array<char, 512> buffer;
  while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe) != nullptr) {
    result.out += buffer.data();
  }
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_TOOL_COMMAND_H_
