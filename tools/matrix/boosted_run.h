// SPDX-License-Identifier: Apache-2.0

// The boosted run of a cell, on ranks that are threads of this process, or, under mpirun,
// processes.
//
//   const BoostedResult got = BoostedRun(cell, Sabotage::kNone);
//   if (got.status.ok()) ... WorstUpdateError(start, want, got.end) ...
#ifndef APOGEE_TOOLS_MATRIX_BOOSTED_RUN_H_
#define APOGEE_TOOLS_MATRIX_BOOSTED_RUN_H_

#include <cstdint>

#include "apogee/core/status.h"
#include "apogee/tools/matrix/cell.h"
#include "apogee/tools/matrix/sabotage.h"
#include "apogee/tools/matrix/update_error.h"

namespace apogee::tools {

struct BoostedResult {
  // Of the rank that failed first.
  absl::Status status;
  // The error came from boost, or says that gradients cannot be accumulated: the plugin and the
  // optimizer do not go together.
  bool refused = false;
  // The weights, the same bits on every rank.
  Weights end;
  // Of bf16 and fp16 runs: the f32 masters, put together from the ranks' parts; NaN where no rank
  // has any.
  Weights masters;
  int64_t num_skipped = 0;
  // Of rank 0 in all its groups, in the last step, from its first forward to zero_grad.
  int64_t collectives = 0;
  int64_t bytes = 0;
  // The largest of the ranks, at the end: states and masters.
  int64_t state_bytes = 0;
  // Of the whole model.
  int64_t num_parameters = 0;
};

// Collective over processes, which must be at least as many as the cell's ranks, and returns the
// same on all of them. Throws CommError when a process is lost.
BoostedResult BoostedRun(const Cell& cell, Sabotage sabotage);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_BOOSTED_RUN_H_
