// Runs a function on n ranks of this process and fails the test with what any of them threw.
//
//   RunRanks(4, [](comm::World& world) { ... EXPECT_… ... });
#ifndef APOGEE_TESTS_SUPPORT_RUN_RANKS_H_
#define APOGEE_TESTS_SUPPORT_RUN_RANKS_H_

#include <gtest/gtest.h>

#include "apogee/comm/launch.h"

namespace apogee::testing {

inline void RunRanks(int num_ranks, const std::function<void(comm::World&)>& fn,
                     double timeout_seconds = 60) {
  const absl::Status status = comm::launch(
      {.num_ranks = num_ranks, .threads_per_rank = 1, .timeout_seconds = timeout_seconds}, fn);
  EXPECT_TRUE(status.ok()) << Message(status);
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_RUN_RANKS_H_
