// SPDX-License-Identifier: Apache-2.0

// Arguments of the kernels of AdaLomo. Sums are of `stat_dtype`, in the device's memory: this
// rank's partials where a kernel writes them, totals where it reads them.
//
//   kernels.adalomo_sums(context, args);              // sums of g^2 + eps and of w^2; reduce
//   kernels.adalomo_factors(context, factor_args);    // factors from the totals
//   kernels.adalomo_update_norm(context, args);       // sum of u^2; reduce
//   kernels.adalomo(context, args);                   // updates the weights
#ifndef APOGEE_OPTIM_FACTORED_ADALOMO_KERNELS_H_
#define APOGEE_OPTIM_FACTORED_ADALOMO_KERNELS_H_

#include <span>

#include "apogee/layout/layout.h"
#include "apogee/optim/core/update_chunk.h"

namespace apogee::optim {

// The second moments of a parameter are per row and column of its logical matrices
// (layout/layout.h), or per element if exp_avg_sq is not null. With
// g = clip * clamp(inv_scale * grad, -clip_value, clip_value):
//   u = g * row_factor[i] * col_factor[j], or per element
//       V = beta2 V + (1 - beta2) (g^2 + eps);  u = g / sqrt(V)
//   a = lr * max(min_rms, rms(w))
//   w = w - a * weight_decay * w - a / max(1, rms(u) / clip_threshold) * u
struct AdaLomoChunk : UpdateChunk {
  const Layout* layout;
  void* exp_avg_sq;
  const double* factors;  // [rows][columns], for adalomo_update_norm and adalomo
  // Out of adalomo_sums: the sums of g^2 + eps [rows][columns], if factored, then the sum of w^2.
  // Out of adalomo_update_norm: the sum of u^2.
  void* sums;
  const void* weight_sum;  // for adalomo: the total of w^2
  const void* update_sum;  // for adalomo: the total of u^2
};
struct AdaLomoArgs {
  DType dtype, stat_dtype;
  double inv_scale, clip_value;
  GradFactor clip;
  double eps, beta2;
  double lr, weight_decay, min_rms, clip_threshold;
  std::span<const AdaLomoChunk> chunks;
};

// Moments of a factored parameter and their factors, in f64:
//   R = beta2 R + (1 - beta2) row sum / cols
//   C = beta2 C + (1 - beta2) column sum / rows
//   row_factor = 1 / sqrt(R / mean(R)), with mean(R) per matrix of the batch
//   col_factor = 1 / sqrt(C)
struct AdaLomoFactorChunk {
  MatrixView matrix;  // of the logical parameter
  void* row;          // R [batch * rows]
  void* column;       // C [batch * cols]
  const void* sums;   // totals
  double* factors;    // out: [batch * (rows + cols)]
};
struct AdaLomoFactorArgs {
  DType dtype, stat_dtype;
  double beta2;
  bool store;            // stores the new R and C; else only writes the factors
  const StepGate* gate;  // not null: R and C stay if it says skip
  std::span<const AdaLomoFactorChunk> chunks;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FACTORED_ADALOMO_KERNELS_H_
