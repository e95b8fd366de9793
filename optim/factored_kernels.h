// SPDX-License-Identifier: Apache-2.0

// Arguments of the kernels of the optimizers with factored second moments: Adafactor and CAME. Such
// an optimizer keeps the mean square of a matrix' rows and of its columns, and takes row_factor[i]
// * column_factor[j] for one over the root of the mean square of element (i, j).
//
// A parameter of fewer than two dimensions is not factored: its mean square is kept per element.
// Sums are this rank's partials where a kernel writes them and totals where it reads them; their
// dtype is `stat_dtype`, f32 or f64. With a factored parameter they lie as [rows][columns], see
// FactoredChunk.
#ifndef APOGEE_OPTIM_FACTORED_KERNELS_H_
#define APOGEE_OPTIM_FACTORED_KERNELS_H_

#include <span>

#include "apogee/comm/layout.h"
#include "apogee/optim/row_blocks.h"
#include "apogee/optim/update_chunk.h"

namespace apogee::optim {

// Averages over rows and columns and the factors that follow from them:
//   R = beta2 R + (1 - beta2) (row sum / cols + eps), C alike;
//   row_factor = sqrt(max(mean(R), mean_floor) / R), per matrix;  column_factor = 1 / sqrt(C).
struct FactorChunk {
  comm::MatrixView matrix;  // of the logical parameter
  void* row;                // R [batch * rows]
  void* column;             // C [batch * cols]
  const void* sums;         // totals
  void* factors;            // out: [batch * (rows + cols)]
  double beta2;
};
struct FactorArgs {
  DType dtype, stat_dtype;
  double eps, mean_floor;
  bool store;  // R and C take the new values; else only the factors are written
  std::span<const FactorChunk> chunks;
  const StepGate* gate = nullptr;  // not null: R and C stay where it says skip
};

struct FactoredChunk : UpdateChunk {
  std::span<const RowBlock> blocks;
  int64_t row_stride;     // columns of the logical matrix
  int64_t rows, columns;  // lengths of the row and column vectors; 0 when not factored
  int64_t numel;          // of the logical parameter
  const void* factors;    // [rows][columns] of the second moment
  void* exp_avg_sq;       // the second moment per element, when not factored
  void* exp_avg;          // first moment, or null
  double beta2;
  void* sums;  // partials of this phase: [rows][columns] and, where there is one, a scalar
  const void* update_sum;        // total: sum of u^2
  const void* residual_factors;  // CAME: as `factors`, of the residual
  SizedRate rate;
};

// sums: of g^2 per row and column; scalar: of w^2, where `with_weights`.
struct AdafactorSumArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  bool with_weights;
  std::span<const FactoredChunk> chunks;
};

// u = g * min(row_factor * column_factor, limit); not factored:
// V = beta2 V + (1 - beta2) (g^2 + eps), u = g * min(1 / sqrt(V), limit). scalar: sum of u^2.
struct AdafactorUpdateSumArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  double eps, limit;
  std::span<const FactoredChunk> chunks;
};

// alpha: the rate;  u as above;
// u *= alpha / max(1, rms(u) / clip_threshold);  with exp_avg: m = beta1 m + (1 - beta1) u, u = m;
// w -= (decay_by_alpha ? alpha : 1) * decay * w + u.
struct AdafactorArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  double eps, limit, clip_threshold, beta1, decay;
  bool decay_by_alpha;
  std::span<const FactoredChunk> chunks;
};

// u as above, clipped;  m = beta1 m + (1 - beta1) u;
// came_residual_sums: sums of (u - m)^2 per row and column; nothing for what is not factored.
// came: w -= decay * w;  w -= lr * m * residual row factor * residual column factor (not factored:
// m).
struct CameArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  double eps, clip_threshold, beta1, lr, decay;
  std::span<const FactoredChunk> chunks;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FACTORED_KERNELS_H_
