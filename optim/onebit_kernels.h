// SPDX-License-Identifier: Apache-2.0

// Arguments of the kernels of the optimizers that send 1-bit messages: 1-bit Adam, 0/1 Adam, 1-bit
// LAMB. Their second moment no longer changes in these kernels; D = sqrt(v) + eps below.
#ifndef APOGEE_OPTIM_ONEBIT_KERNELS_H_
#define APOGEE_OPTIM_ONEBIT_KERNELS_H_

#include <span>

#include "apogee/optim/update_chunk.h"

namespace apogee::optim {

// to = beta * from + weight * grad, of the kernel's dtype; `to` may be one of them. Without `from`
// (null) its part is left out.
struct BlendChunk {
  void* to;
  const void* from;
  const void* grad;
  DType grad_dtype;
  double weight;
  int64_t n;
};
struct BlendArgs {
  DType dtype;
  double beta;
  std::span<const BlendChunk> chunks;
};

// g is what the ranks agreed on, a momentum or a gradient, of the kernel's dtype:
// m = beta m + weight g;  w -= step_size (m / D + decay w).
struct FrozenAdamChunk : UpdateChunk {
  void* exp_avg;
  const void* exp_avg_sq;
  double step_size;
};
struct FrozenAdamArgs {
  DType dtype;
  double beta, weight, eps, decay;
  std::span<const FrozenAdamChunk> chunks;
};

// A step that this rank makes alone. w = anchor - drift / D at all times, the anchor being the same
// on every rank: keep = 1 - lr decay;  anchor *= keep;  drift = keep drift + lr m. Then w. The
// momentum m has been updated before; grad is unused.
struct LocalStepChunk : UpdateChunk {
  const void* exp_avg;
  const void* exp_avg_sq;
  void* anchor;
  void* drift;
};
struct LocalStepArgs {
  DType dtype;
  double lr, keep, eps;
  std::span<const LocalStepChunk> chunks;
};

// Sums for 1-bit LAMB of a momentum m that the ranks agreed on, g_rec = (m - beta1 m_prev) /
// (1 - beta1), fresh = beta2 v_fresh + (1 - beta2) g_rec^2, direction u = m / D + decay w:
// sums: [sum (m / D)^2, sum u^2], max: of D / (sqrt(fresh) + eps) over elements with v > 0.
// Nothing is stored. onebit_lamb stores fresh and m, and w -= step_size u.
struct OneBitLambChunk : UpdateChunk {  // grad is m, of the kernel's dtype
  void* exp_avg;                        // m_prev
  const void* exp_avg_sq;
  void* fresh;
  void* sums;  // in stat_dtype
  void* max;
  double step_size;
};
struct OneBitLambArgs {
  DType dtype, stat_dtype;
  double beta1, beta2, eps, decay;
  std::span<const OneBitLambChunk> chunks;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_KERNELS_H_
