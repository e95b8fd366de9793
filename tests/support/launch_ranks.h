// comm::launch for tests that also run under mpirun, where ranks are processes.
//
//   const absl::Status status = LaunchRanks({.num_ranks = 3}, [&](comm::World& world) {
//     results[world.rank()] = ...;
//   });
//   ShareByRank(results);            // what the other processes have written
//
// There the processes beyond num_ranks do nothing, but run the rest of the test like all others. A
// process that does not come any more ends the suite: every later test would wait for it, too.
#ifndef APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_
#define APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "apogee/comm/some_ranks.h"

namespace apogee::testing {

// 1 where ranks are threads.
inline int NumProcesses() { return ValueOrThrow(comm::StartedProcesses()).size; }

// Where --timeout-seconds of mpi_main.cc is kept.
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
  // One write, so that the lines of several processes do not mix.
  const std::string line = "the suite ends, processes do not come together: " + Message(met) + "\n";
  std::fputs(line.c_str(), stderr);
  std::exit(1);
}

inline absl::Status LaunchRanks(comm::LaunchOptions options,
                                const std::function<void(comm::World&)>& fn) {
  if (NumProcesses() > 1) MeetAllProcesses();
  options.timeout_seconds = AtMostTimeout(options.timeout_seconds);
  return comm::LaunchSome(options, fn);
}

template <typename T>
void ShareByRank(std::vector<T>& values) {
  comm::ShareByRank(values, AtMostTimeout(60));
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_
