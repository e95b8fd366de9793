// SPDX-License-Identifier: Apache-2.0

// Runs a function on n ranks; the test fails if any rank throws. The ranks are threads of this
// process or, under mpirun, processes. A test with more ranks than processes is skipped.
//
//   RunRanks(4, [](comm::World& world) { ... EXPECT_… ... });
#ifndef APOGEE_TESTS_SUPPORT_RUN_RANKS_H_
#define APOGEE_TESTS_SUPPORT_RUN_RANKS_H_

#include <gtest/gtest.h>

#include "apogee/tests/support/launch_ranks.h"

namespace apogee::testing {

inline void RunRanks(int num_ranks, const std::function<void(comm::World&)>& fn,
                     double timeout_seconds = 60) {
  if (TooManyRanks(num_ranks)) GTEST_SKIP() << "needs " << num_ranks << " processes";
  const absl::Status status = LaunchRanks(
      {.num_ranks = num_ranks, .threads_per_rank = 1, .timeout_seconds = timeout_seconds}, fn);
  EXPECT_TRUE(status.ok()) << Message(status);
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_RUN_RANKS_H_
