// SPDX-License-Identifier: Apache-2.0

// The environment variable APOGEE_TEST_SHARD=I/N, 1 <= I <= N: a program of many tests runs only
// every N-th of them, beginning with the I-th, where ctest has another entry that runs them all:
// if the ranks are processes, or if the device is the GPU in software. scripts/test.sh sets it, to
// another shard for each commit.
#ifndef APOGEE_TESTS_SUPPORT_TEST_SHARD_H_
#define APOGEE_TESTS_SUPPORT_TEST_SHARD_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace apogee::testing {

// `num_processes`: the program's ranks, 1 if they are threads. Call it after TakeOnlySource. False,
// with a message on stderr, if the variable's value is not understood.
inline bool TakeShard(int num_processes) {
  constexpr const char* kVariable = "APOGEE_TEST_SHARD";
  constexpr int kMinTestsPerShard = 3;
  const char* value = std::getenv(kVariable);
  const char* device = std::getenv("APOGEE_TEST_DEVICE");
  const bool repeats =
      num_processes > 1 || (device != nullptr && std::string_view(device) != "cpu");
  if (value == nullptr || !repeats) return true;
  int index = 0, shards = 0;
  char rest = 0;
  if (std::sscanf(value, "%d/%d%c", &index, &shards, &rest) != 2 || index < 1 || index > shards) {
    std::fprintf(stderr, "%s is '%s', expected I/N with 1 <= I <= N\n", kVariable, value);
    return false;
  }
  const std::string filter = ::testing::GTEST_FLAG(filter);  // --only-source names every test
  const auto num_tests = filter == "*" ? ::testing::UnitTest::GetInstance()->total_test_count()
                                       : static_cast<int>(std::ranges::count(filter, ':')) + 1;
  if (num_tests < kMinTestsPerShard * shards) return true;
  setenv("GTEST_TOTAL_SHARDS", std::to_string(shards).c_str(), 1);
  setenv("GTEST_SHARD_INDEX", std::to_string(index - 1).c_str(), 1);
  return true;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_TEST_SHARD_H_
