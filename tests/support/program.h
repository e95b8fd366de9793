// SPDX-License-Identifier: Apache-2.0

// Runs a program of this build and captures its output.
//
//   const ProgramResult result = RunProgram(APOGEE_TRAIN_GPT, "--steps 12", dir);
//   EXPECT_EQ(result.exit_code, 0) << result.err;
#ifndef APOGEE_TESTS_SUPPORT_PROGRAM_H_
#define APOGEE_TESTS_SUPPORT_PROGRAM_H_

#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::testing {

struct ProgramResult {
  int exit_code;
  std::string out, err;
};

// Writes the files stdout and stderr in `dir`.
inline ProgramResult RunProgram(const std::string& program, const std::string& flags,
                                const TempDir& dir) {
  const std::string command =
      program + " " + flags + " >" + (dir / "stdout") + " 2>" + (dir / "stderr");
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadFile(dir / "stdout"),
          ReadFile(dir / "stderr")};
}

// The parsed lines of a JSONL file.
inline std::vector<nlohmann::json> ReadRows(const std::string& path) {
  std::vector<nlohmann::json> rows;
  std::istringstream text(ReadFile(path));
  for (std::string line; std::getline(text, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_PROGRAM_H_
