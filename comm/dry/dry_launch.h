// SPDX-License-Identifier: Apache-2.0

// DryLaunch: launch() in dry contexts, to price a run (core/device_context.h). Some ranks of a
// world run as threads; each of the others has a stand-in among them.
//
//   absl::Status status = DryLaunch({.num_ranks = 1024, .ranks = {0, 8, 16}}, [&](World& world) {
//     ... the code that launch() would run ...
//   });
//
// A collective waits for the members that run, and compares their calls as every backend does.
// Inputs of at most kDryBytes move, and texts, so that ranks agree on options, shapes and presence.
// A member that does not run has the input of its stand-in. Larger data stays where it is. Traffic
// is counted as ever. With a clock, ranks also have a virtual time, so that overlap and the waiting
// of pipeline stages come from the schedule that really runs.
#ifndef APOGEE_COMM_DRY_DRY_LAUNCH_H_
#define APOGEE_COMM_DRY_DRY_LAUNCH_H_

#include <functional>
#include <vector>

#include "apogee/comm/dry/dry_clock.h"
#include "apogee/comm/launch.h"

namespace apogee::comm {

// Sizes of one rank's input.
inline constexpr int64_t kDryBytes = 64 << 10;
inline constexpr int64_t kDryTextBytes = 16 << 20;  // of u8, the dtype of texts

struct DryOptions {
  int num_ranks = 1;
  // The ranks that run, ascending. Empty: all.
  std::vector<int> ranks = {};
  // The rank of `ranks` that a rank stands behind, for ranks that do not run. In a group without
  // its stand-in, a rank has the input of the first member that runs. Null: always that one.
  std::function<int(int rank)> stand_in = nullptr;
  // Of each rank's context. The sizes of scratch memory depend on it.
  int threads_per_rank = 1;
  // Gets every call of a rank's collectives, on the rank's own thread. Null: nobody.
  std::function<void(int rank, const CollectiveCall& call)> on_call = nullptr;
  // Called on the threads of all ranks. A collective begins when its last member calls it, and when
  // the group's collective before it has ended. Null: time stands still.
  DryClock* clock = nullptr;
};

// Blocks until every rank that runs has ended. Returns the error of the rank that failed first.
absl::Status DryLaunch(const DryOptions& options, const std::function<void(World&)>& fn);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_DRY_DRY_LAUNCH_H_
