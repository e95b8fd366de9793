// SPDX-License-Identifier: Apache-2.0

// The run that every boosted run must equal: one rank, the whole batch, no booster.
//
//   const PlainResult want = PlainRun(cell, {});
#ifndef APOGEE_TOOLS_MATRIX_PLAIN_RUN_H_
#define APOGEE_TOOLS_MATRIX_PLAIN_RUN_H_

#include <string>

#include "apogee/optim/loss_scaler.h"
#include "apogee/tools/matrix/cell.h"
#include "apogee/tools/matrix/update_error.h"
#include "apogee/tools/matrix/workload.h"

namespace apogee::tools {

// Loss scale of fp16 cells: it grows and stays far from what fp16 can hold, so that no overflow
// depends on how the batch is split; the one that every run must meet is made by ScaleLoss.
inline constexpr optim::LossScalerOptions kLossScaler = {
    .initial_scale = 1024, .growth_interval = 4, .max_scale = 4096};

// The step of an fp16 run that overflows, and what its loss is multiplied by.
inline constexpr int64_t kOverflowStep = 6;
inline constexpr double kOverflowFactor = 1e6;

// Whether the run keeps f32 masters of its weights.
bool HasMasters(const Cell& cell);

// The dtype that a cell's model is initialised in: f64 for f64, else f32; plugins convert.
DType InitialDType(const std::string& precision);
inline constexpr uint64_t kSeed = 11;

// Weights before and after; the f32 masters of runs that have them.
struct PlainResult {
  Weights start, end;
  int64_t num_skipped = 0;  // steps
  bool has_codes = false;   // see HasCodes
};

// The same run with other rounding: the batch is permuted and cut into micro-batches, and backward
// starts from `scale` instead of 1, which the optimizer takes off again. A rank's part of a batch
// does all three: its mean is over fewer samples, so its gradients are larger.
struct Reordering {
  int permutation = 0;
  int64_t num_micro_batches = 1;
  double scale = 1;
};

// Of the cell's optimizer, precision, clipping and workload; where targets are ignored, in the
// cell's own micro-batches, whose means these are, and so in no other. Throws Error when training
// fails.
PlainResult PlainRun(const Cell& cell, const Reordering& order);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_PLAIN_RUN_H_
