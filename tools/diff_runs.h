// SPDX-License-Identifier: Apache-2.0

// DiffRuns: finds the step at which two runs begin to differ, and prints the differences: first of
// the rows of metrics.jsonl and validation.jsonl, then of the tensors of the checkpoints. Rows and
// checkpoints that only one run has are counted, but are no difference: old checkpoints are deleted
// during training, and one run may be longer.
//
//   APOGEE_ASSIGN_OR_RETURN(const bool same, DiffRuns(a, b, /*limit=*/10, std::cout));
//
// Errors: damaged rows or checkpoints, and runs without a common step.
#ifndef APOGEE_TOOLS_DIFF_RUNS_H_
#define APOGEE_TOOLS_DIFF_RUNS_H_

#include <ostream>

#include "apogee/report/files/run_folder.h"

namespace apogee::tools {

absl::StatusOr<bool> DiffRuns(const report::RunFolder& a, const report::RunFolder& b, int64_t limit,
                              std::ostream& out);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_DIFF_RUNS_H_
