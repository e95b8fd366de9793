// SPDX-License-Identifier: Apache-2.0

// Counts the running processes whose command line contains a text.
//
//   EXPECT_EQ(NumProcessesWith("sleep 98765.4321"), 0);
#ifndef APOGEE_TESTS_SUPPORT_PROCESS_TABLE_H_
#define APOGEE_TESTS_SUPPORT_PROCESS_TABLE_H_

#include <algorithm>
#include <filesystem>
#include <string>

#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::testing {

inline int NumProcessesWith(const std::string& words) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string line = ReadFile(entry.path() / "cmdline");
    std::replace(line.begin(), line.end(), '\0', ' ');
    count += line.find(words) != std::string::npos;
  }
  return count;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_PROCESS_TABLE_H_
