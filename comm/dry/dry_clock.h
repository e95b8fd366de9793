// SPDX-License-Identifier: Apache-2.0

// DryClock: the virtual time of a dry launch.
//
//   struct Clock : DryClock { ... };
//   DryLaunch({.num_ranks = 8, .clock = &clock}, fn);
//
// Kernels advance a rank's time through its context's kernel listener. The dry world does it for
// collectives: it asks for their cost, and tells the clock who is busy and who waits.
#ifndef APOGEE_COMM_DRY_DRY_CLOCK_H_
#define APOGEE_COMM_DRY_DRY_CLOCK_H_

#include <vector>

#include "apogee/comm/group.h"

namespace apogee::comm {

struct CollectiveCost {
  double seconds = 0;
  // Whether the ranks compute while the data moves. If not, a call keeps its caller busy for so
  // long, and the collective ends with the last member's call.
  bool overlaps = true;
};

// Called on the threads of all ranks, for the thread's own rank.
class DryClock {
 public:
  virtual ~DryClock() = default;
  // Seconds since the launch.
  virtual double Now(int rank) = 0;
  virtual void Work(int rank, double seconds) = 0;
  virtual void WaitUntil(int rank, double seconds) = 0;
  // `members`: world ranks of the group, or sender and receiver.
  virtual CollectiveCost CostOf(const CollectiveCall& call, const std::vector<int>& members) = 0;
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_DRY_DRY_CLOCK_H_
