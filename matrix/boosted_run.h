// SPDX-License-Identifier: Apache-2.0

// The boosted run of a cell. Its ranks are threads of this process or, under mpirun, processes.
//
//   const BoostedResult got = BoostedRun(cell, Sabotage::kNone);
//   if (got.status.ok()) ... WorstUpdateError(start, want, got.end) ...
#ifndef APOGEE_MATRIX_BOOSTED_RUN_H_
#define APOGEE_MATRIX_BOOSTED_RUN_H_

#include <cstdint>
#include <vector>

#include "apogee/core/memory.h"
#include "apogee/core/status.h"
#include "apogee/matrix/cell.h"
#include "apogee/matrix/sabotage.h"
#include "apogee/matrix/update_error.h"

namespace apogee::matrix {

struct BoostedResult {
  // The status of the rank that failed first.
  absl::Status status;
  // True if boost threw the error, or if it says that gradients cannot be accumulated: the plugin
  // does not support the optimizer.
  bool refused = false;
  // The final weights, the same bits on every rank.
  Weights end;
  // For bf16 and fp16 runs: the f32 master weights, assembled from the ranks' shards; NaN where no
  // rank has any.
  Weights masters;
  int64_t num_skipped = 0;
  // Traffic of rank 0 over all its groups in the last step, from the first forward to zero_grad.
  int64_t collectives = 0;
  int64_t bytes = 0;
  // States and masters at the end; the largest of all ranks.
  int64_t state_bytes = 0;
  // The size of the whole model.
  int64_t num_parameters = 0;
};

// Every process calls this, and all get the same result; there must be at least as many processes
// as the cell has ranks. Throws CommError if a process is lost.
BoostedResult BoostedRun(const Cell& cell, Sabotage sabotage);

// The memory of every rank after the training of the cell: measured by a run whose ranks are
// threads, or priced by a dry run (comm/dry/dry_launch.h). Returns the error of the run.
absl::StatusOr<std::vector<MemoryFigures>> MeasuredMemory(const Cell& cell);
absl::StatusOr<std::vector<MemoryFigures>> PricedMemory(const Cell& cell);

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_BOOSTED_RUN_H_
