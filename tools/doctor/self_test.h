// SPDX-License-Identifier: Apache-2.0

// The self test of two ranks: runs every collective once, small and large, in f32, f64 and bf16, on
// all ranks and on a sub-group, and checks the results.
//
//   absl::Status status = RunSelfTest(/*processes=*/true, /*timeout_seconds=*/30, std::cout);
//
// Rank 0 writes a line before each check, so the last line of a test that hangs names the check. At
// the end it writes "checks N" and "all_reduce_mib_per_s R".
#ifndef APOGEE_TOOLS_DOCTOR_SELF_TEST_H_
#define APOGEE_TOOLS_DOCTOR_SELF_TEST_H_

#include <ostream>

#include "apogee/core/status.h"

namespace apogee::tools::doctor {

// The ranks are two threads or, with `processes`, the two processes that mpirun or apogee run
// started; another number of processes is a FailedPrecondition. A wrong result gives an error that
// names the collective and the element.
absl::Status RunSelfTest(bool processes, double timeout_seconds, std::ostream& out);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_SELF_TEST_H_
