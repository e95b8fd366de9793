// SPDX-License-Identifier: Apache-2.0

// comm::launch for tests that also run under mpirun, where ranks are processes.
//
//   const absl::Status status = LaunchRanks({.num_ranks = 3}, [&](comm::World& world) {
//     results[world.rank()] = ...;
//   });
//   ShareByRank(results);            // gives every process the other processes' results
//
// Under mpirun, processes beyond num_ranks skip the function but run the rest of the test. If a
// process does not come any more, the suite ends, since every later test would wait for that
// process.
#ifndef APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_
#define APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "apogee/comm/some_ranks.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::testing {

// 1 if ranks are threads.
inline int NumProcesses() { return ValueOrThrow(comm::StartedProcesses()).size; }

// True if there are fewer processes than ranks.
inline bool TooManyRanks(int num_ranks) { return NumProcesses() > 1 && num_ranks > NumProcesses(); }

// The environment variable that stores --timeout-seconds of process_main.cc.
inline constexpr const char* kTimeoutVariable = "APOGEE_TEST_TIMEOUT_SECONDS";
inline double AtMostTimeout(double seconds) {
  const char* limit = std::getenv(kTimeoutVariable);
  return limit != nullptr ? std::min(seconds, std::stod(limit)) : seconds;
}

inline void MeetAllProcesses() {
  const absl::Status met =
      comm::launch({.threads_per_rank = 1, .timeout_seconds = AtMostTimeout(60)},
                   [](const comm::World& world) { world.group()->Barrier(); });
  if (met.ok()) return;
  // Write once, so that the lines of several processes don't mix.
  const std::string line = "the suite ends, processes do not come together: " + Message(met) + "\n";
  std::fputs(line.c_str(), stderr);
  std::exit(1);
}

inline absl::Status LaunchRanks(comm::LaunchOptions options,
                                const std::function<void(comm::World&)>& fn) {
  if (NumProcesses() > 1) MeetAllProcesses();
  options.timeout_seconds = AtMostTimeout(options.timeout_seconds);
  if (TestDevice() != "cpu") options.device = TestDevice();
  return comm::LaunchSome(options, fn);
}

inline void ShareByRank(std::vector<std::string>& values) {
  comm::ShareByRank(values, AtMostTimeout(60));
}
inline void ShareByRank(std::vector<comm::NamedNumbers>& values) {
  comm::ShareByRank(values, AtMostTimeout(60));
}
template <typename T>
requires std::is_arithmetic_v<T>
void ShareByRank(std::vector<std::vector<T>>& values) {
  std::vector<std::string> texts;
  for (const auto& own : values) {
    texts.emplace_back(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(T));
  }
  ShareByRank(texts);
  for (size_t r = 0; r < values.size(); ++r) {
    values[r].resize(texts[r].size() / sizeof(T));
    std::memcpy(values[r].data(), texts[r].data(), texts[r].size());
  }
}
template <typename T>
requires std::is_arithmetic_v<T>
void ShareByRank(std::vector<T>& values) {
  std::vector<std::vector<T>> each;
  for (const T value : values) each.push_back({value});
  ShareByRank(each);
  for (size_t r = 0; r < values.size(); ++r) values[r] = each[r][0];
}

// Gives every process rank 0's value.
template <typename T>
void ShareFromFirst(T& value) {
  std::vector<T> values{value};
  ShareByRank(values);
  value = values[0];
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_
