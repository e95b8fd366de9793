// SPDX-License-Identifier: Apache-2.0

// Arguments of the kernels of Adafactor and CAME. These have factored second moments: they keep the
// mean square of each row and of each column of a matrix. From these follow factors, such that
// row_factor[i] * column_factor[j] approximates one over the root of the mean square of element
// (i, j).
//
// A parameter of fewer than two dims is not factored: its mean square is kept per element. Sums are
// this rank's partials where a kernel writes them and totals where it reads them; their dtype is
// `stat_dtype`, f32 or f64. Those of a factored parameter are laid out as [rows][columns], see
// FactoredChunk.
//
//   const OptimKernels& kernels = OptimKernelsFor(context);
//   kernels.adafactor_square_sums(context, sum_args);         // row and column sums; reduce
//   kernels.factor_moments(context, factor_args);             // factors from the totals
//   kernels.adafactor_update_sum(context, update_sum_args);   // sum of u^2; reduce
//   kernels.adafactor(context, args);                         // updates the weights
#ifndef APOGEE_OPTIM_FACTORED_FACTORED_KERNELS_H_
#define APOGEE_OPTIM_FACTORED_FACTORED_KERNELS_H_

#include <span>

#include "apogee/layout/layout.h"
#include "apogee/optim/core/row_blocks.h"
#include "apogee/optim/core/update_chunk.h"

namespace apogee::optim {

// Averages over rows and columns, and their factors:
//   R = beta2 R + (1 - beta2) (row sum / cols + eps)
//   C = beta2 C + (1 - beta2) (column sum / rows + eps)
//   row_factor = sqrt(max(mean(R), mean_floor) / R), with mean(R) per matrix of the batch
//   column_factor = 1 / sqrt(C)
struct FactorChunk {
  MatrixView matrix;  // of the logical parameter
  void* row;          // R [batch * rows]
  void* column;       // C [batch * cols]
  const void* sums;   // totals
  void* factors;      // out: [batch * (rows + cols)]
  double beta2;
};
struct FactorArgs {
  DType dtype, stat_dtype;
  double eps, mean_floor;
  bool store;  // stores the new R and C; else only writes the factors
  std::span<const FactorChunk> chunks;
  const StepGate* gate = nullptr;  // not null: R and C stay if it says skip
};

struct FactoredChunk : UpdateChunk {
  std::span<const RowBlock> blocks;
  int64_t row_stride;     // columns of the logical matrix
  int64_t rows, columns;  // lengths of the row and column vectors; 0 if not factored
  int64_t numel;          // of the logical parameter
  const void* factors;    // [rows][columns] of the second moment
  void* exp_avg_sq;       // the second moment per element, if not factored
  void* exp_avg;          // first moment, or null
  double beta2;
  void* sums;  // partials of this phase: [rows][columns], then the scalar, if it has one
  const void* update_sum;        // total: sum of u^2
  const void* residual_factors;  // CAME: like `factors`, of the residual
  SizedRate rate;
};

// Writes the sums of g^2 per row and column and, with `with_weights`, the sum of w^2 as the scalar.
struct AdafactorSumArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  bool with_weights;
  std::span<const FactoredChunk> chunks;
};

// Writes the sum of u^2 as the scalar:
//   factored:     u = g * min(row_factor * column_factor, limit)
//   not factored: V = beta2 V + (1 - beta2) (g^2 + eps);  u = g * min(1 / sqrt(V), limit)
struct AdafactorUpdateSumArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  double eps, limit;
  std::span<const FactoredChunk> chunks;
};

// Adafactor's update, with alpha the chunk's rate and u as in AdafactorUpdateSumArgs:
//   u *= alpha / max(1, rms(u) / clip_threshold)
//   with exp_avg: m = beta1 m + (1 - beta1) u;  u = m
//   w -= (decay_by_alpha ? alpha : 1) * decay * w + u
struct AdafactorArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  double eps, limit, clip_threshold, beta1, decay;
  bool decay_by_alpha;
  std::span<const FactoredChunk> chunks;
};

// CAME, with u as in AdafactorUpdateSumArgs:
//   u = u / max(1, rms(u) / clip_threshold)
//   m = beta1 m + (1 - beta1) u
//   came_residual_sums: writes the sums of (u - m)^2 per row and column; nothing if not factored
//   came: w -= decay * w
//         factored:     w -= lr * m * residual row factor * residual column factor
//         not factored: w -= lr * m
struct CameArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  double eps, clip_threshold, beta1, lr, decay;
  std::span<const FactoredChunk> chunks;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FACTORED_FACTORED_KERNELS_H_
