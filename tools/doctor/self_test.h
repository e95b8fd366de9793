// SPDX-License-Identifier: Apache-2.0

// What two ranks must be able to do: every collective once, small and large, in f32, f64 and bf16,
// on all ranks and on a sub-group, with the outcome compared with what it must be.
//
//   absl::Status status = RunSelfTest(/*processes=*/true, /*timeout_seconds=*/30, std::cout);
//
// Rank 0 writes a line per check before it starts, so that the last line of one that hangs says
// where; at the end "checks N" and "all_reduce_mib_per_s R".
#ifndef APOGEE_TOOLS_DOCTOR_SELF_TEST_H_
#define APOGEE_TOOLS_DOCTOR_SELF_TEST_H_

#include <ostream>

#include "apogee/core/status.h"

namespace apogee::tools::doctor {

// The ranks: two threads, or with `processes` the two that mpirun or apogee run
// has started. A result that is
// wrong names the collective and the element; any other number of processes is a
// FailedPrecondition.
absl::Status RunSelfTest(bool processes, double timeout_seconds, std::ostream& out);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_SELF_TEST_H_
