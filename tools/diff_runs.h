// SPDX-License-Identifier: Apache-2.0

// DiffRuns: from which step on two runs differ, and in what: the rows of metrics.jsonl and
// validation.jsonl, then the tensors of the checkpoints. What only one of them has is counted and
// is no difference: checkpoints go as training goes on, and one run may be longer.
//
//   APOGEE_ASSIGN_OR_RETURN(const bool same, DiffRuns(a, b, /*limit=*/10, std::cout));
//
// Errors: rows or checkpoints that are damaged, and runs without a step in common.
#ifndef APOGEE_TOOLS_DIFF_RUNS_H_
#define APOGEE_TOOLS_DIFF_RUNS_H_

#include <ostream>

#include "apogee/tools/run_folder.h"

namespace apogee::tools {

absl::StatusOr<bool> DiffRuns(const RunFolder& a, const RunFolder& b, int64_t limit,
                              std::ostream& out);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_DIFF_RUNS_H_
