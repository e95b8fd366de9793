// SPDX-License-Identifier: Apache-2.0

// The reference for every boosted run: one rank, the whole batch, no booster.
//
//   const PlainResult want = PlainRun(cell, {});
#ifndef APOGEE_MATRIX_PLAIN_RUN_H_
#define APOGEE_MATRIX_PLAIN_RUN_H_

#include <string>

#include "apogee/matrix/cell.h"
#include "apogee/matrix/update_error.h"
#include "apogee/matrix/workload.h"
#include "apogee/optim/step/loss_scaler.h"

namespace apogee::matrix {

// The loss scale of fp16 cells. It grows, but stays far below fp16's limits, so no overflow depends
// on how the batch is divided. The one overflow that every run must handle is made by ScaleLoss.
inline constexpr optim::LossScalerOptions kLossScaler = {
    .initial_scale = 1024, .growth_interval = 4, .max_scale = 4096};

// The step of an fp16 run that overflows, and the factor on its loss that makes it overflow.
inline constexpr int64_t kOverflowStep = 6;
inline constexpr double kOverflowFactor = 1e6;

// True if the run keeps f32 master weights.
bool HasMasters(const Cell& cell);

// The dtype in which a cell's model is initialised: f64 for f64, else f32. Plugins convert it.
DType InitialDType(const std::string& precision);
inline constexpr uint64_t kSeed = 11;

// Weights before and after the run; f32 masters if the run has them.
struct PlainResult {
  Weights start, end;
  int64_t num_skipped = 0;  // steps
  bool has_codes = false;   // see HasCodes
};

// The same run with other rounding: the batch is permuted and divided into micro-batches, and
// backward starts from `scale` instead of 1, which the optimizer divides out again. A rank's part
// of a batch has the same effects: its mean is over fewer samples, so its gradients are larger.
struct Reordering {
  int permutation = 0;
  int64_t num_micro_batches = 1;
  double scale = 1;
};

// Trains with the cell's optimizer, precision, clipping and workload. If the cell ignores targets,
// the micro-batches are the cell's own, since the loss consists of their means. Throws Error if
// training fails.
PlainResult PlainRun(const Cell& cell, const Reordering& order);

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_PLAIN_RUN_H_
