// comm::launch for tests that also run under mpirun, where ranks are processes.
//
//   const absl::Status status = LaunchRanks({.num_ranks = 3}, [&](comm::World& world) {
//     results[world.rank()] = ...;
//   });
//   ShareByRank(results);            // what the other processes have written
//
// There the processes beyond num_ranks do nothing, but run the rest of the test like all others.
#ifndef APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_
#define APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_

#include <string>
#include <vector>

#include "apogee/comm/some_ranks.h"

namespace apogee::testing {

// 1 where ranks are threads.
inline int NumProcesses() { return ValueOrThrow(comm::StartedProcesses()).size; }

inline absl::Status LaunchRanks(const comm::LaunchOptions& options,
                                const std::function<void(comm::World&)>& fn) {
  return comm::LaunchSome(options, fn);
}

template <typename T>
void ShareByRank(std::vector<T>& values) {
  comm::ShareByRank(values);
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_
