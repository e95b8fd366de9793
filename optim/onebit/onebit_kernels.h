// SPDX-License-Identifier: Apache-2.0

// Kernel arguments of the optimizers with 1-bit messages: 1-bit Adam, 0/1 Adam, 1-bit LAMB. These
// kernels do not change the second moment v. Below, D = sqrt(v) + eps.
//
//   OptimKernelsFor(context).blend(context, {dtype, /*beta=*/0.9, chunks});     // momentum to send
//   ... average over the ranks ...
//   OptimKernelsFor(context).frozen_adam(context, args);                        // weights
#ifndef APOGEE_OPTIM_ONEBIT_ONEBIT_KERNELS_H_
#define APOGEE_OPTIM_ONEBIT_ONEBIT_KERNELS_H_

#include <cmath>
#include <span>

#include "apogee/optim/core/update_chunk.h"

namespace apogee::optim {

// to = beta * from + weight * grad, with to and from of the kernel's dtype. If `from` is null:
// to = weight * grad. `to` may be `from` or `grad`.
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

// With g a momentum or gradient averaged over the ranks. v is the second moment.
struct FrozenAdamElement {
  static constexpr int kNumInputs = 1;
  double beta, weight, step_size, eps, decay;

  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C g, C& w, C& m, const C& v) const {
    m = C(beta) * m + C(weight) * g;
    w -= C(step_size) * (m / (std::sqrt(v) + C(eps)) + C(decay) * w);
  }
};

// A step of this rank alone, with keep = 1 - lr * decay and the momentum m, which the caller has
// already updated, as the gradient. The anchor is the same on every rank.
struct LocalStepElement {
  static constexpr int kNumInputs = 1;
  double lr, keep, eps;

  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C m, C& w, C& anchor, C& drift, const C& v) const {
    anchor = C(keep) * anchor;
    drift = C(keep) * drift + C(lr) * m;
    w = anchor - drift / (std::sqrt(v) + C(eps));
  }
};
using FrozenAdamArgs = ElementArgs<FrozenAdamElement, 2>;
using LocalStepArgs = ElementArgs<LocalStepElement, 3>;

// 1-bit LAMB, with m (`grad`, of the kernel's dtype) the momentum averaged over the ranks:
//   g_rec = (m - beta1 m_prev) / (1 - beta1)
//   fresh = beta2 fresh + (1 - beta2) g_rec^2
//   u = m / D + decay w
// onebit_lamb_sums writes sums = [sum of (m / D)^2, sum of u^2] and max = the maximum of
// D / (sqrt(fresh) + eps) over elements with v > 0, and changes nothing else. onebit_lamb stores
// fresh and m, and updates w -= step_size u.
struct OneBitLambChunk : UpdateChunk {
  void* exp_avg;  // in: m_prev; out: m
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

#endif  // APOGEE_OPTIM_ONEBIT_ONEBIT_KERNELS_H_
