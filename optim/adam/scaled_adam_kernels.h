// SPDX-License-Identifier: Apache-2.0

// Kernel arguments of ScaledAdam; see kernels.h. A step runs the kernels in this order. They pass
// results on in the device's memory, so the host does not wait.
//
//   dots                 statistics of each parameter; reduce over ranks
//   scaled_adam_shares   each parameter's part of the norm; only with clipping
//   median_clip          the clip factor of the group
//   scaled_adam_sizes    rms and growth of each parameter
//   scaled_adam          the update
#ifndef APOGEE_OPTIM_ADAM_SCALED_ADAM_KERNELS_H_
#define APOGEE_OPTIM_ADAM_SCALED_ADAM_KERNELS_H_

#include <span>

#include "apogee/optim/core/update_chunk.h"

namespace apogee::optim {

// With g = grad_scale * grad, writes sums = [sum of w g, sum of g^2, sum of w^2]. If `all` is
// false, the last two are 0.
struct DotChunk {
  const void* weight;  // of the kernel's dtype
  const void* grad;
  DType grad_dtype;
  int64_t n;
  bool all;
  void* sums;  // out: three numbers of stat_dtype
};
struct DotArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  std::span<const DotChunk> chunks;
};

// The rms of one parameter and its change. The names are those of the equations in scaled_adam.h.
struct ScaledAdamSizeChunk {
  const void* sums;  // totals of DotChunk::sums
  double numel;      // of the logical parameter
  void* param_rms;   // the states, of the kernel's dtype; null for one element
  void* scale_exp_avg_sq;
  void* scale_grad_sum;
  void* scale_grad_sumsq;
  bool first_step, opens_period, ends_period;
  double beta, root;   // b = beta2^P and sqrt(1 - b^k)
  double norm_factor;  // weight of the gradient of a one-element parameter in the norm
  double rate;         // step_size, before the factor max(param_rms, min_rms)
  double* share;       // out of scaled_adam_shares: part of the squared norm, |g|, param_rms
  double* step;        // out of scaled_adam_sizes: step_size and growth of the update
};
struct ScaledAdamSizeArgs {
  DType dtype, stat_dtype;
  const StepGate* gate;  // of median_clip: g is multiplied by its clip_factor; or null
  int64_t period;
  double size_lr, one_minus_beta1, eps, min_rms, max_rms;
  bool icefall_2023;
  std::span<const ScaledAdamSizeChunk> chunks;
};

struct MedianClippingOptions {
  double scale = 0;  // 0: no clipping
  int64_t period = 100;
  // Also sets the threshold, doubled, after 10, 20 and 40 steps, when norms may still change fast.
  bool early_estimates = true;
};

// In the device's memory, followed by `period` norms. A negative number means absent.
struct MedianClippingState {
  double clip_step;
  double threshold;
  double num_clipped;
  double percent_clipped;
  double quartiles[5];
};

// The clip factor of one group (median_clipping.h), from the shares of its parameters, which are
// `count` times three numbers in a row.
struct MedianClipArgs {
  GradFactor grad_scale;
  MedianClippingOptions options;
  bool dropped_only;  // grad_scale leaves out the clip factor, unless that is 0
  const double* shares = nullptr;
  int64_t count = 0;
  MedianClippingState* state = nullptr;  // in and out, with norms; null without clipping
  StepGate* gate;  // out: grad_norm, clip_factor, the update's grad_scale, skip
};

// The update:
//   g = grad_scale * grad, or 0 if grad_scale is 0, even for a gradient that is not finite
//   v = beta2 v + (1 - beta2) g^2
//   delta = beta1 delta + step_size * g / (sqrt(v_scale * v) + eps) + growth * w
//   if clamp_before: w = clamp(w, -limit, limit)
//   w += delta
//   if not clamp_before: w = clamp(w, -limit, limit)
struct ScaledAdamChunk : UpdateChunk {
  void* delta;
  void* exp_avg_sq;
  const double* step;  // step_size and growth, from scaled_adam_sizes
  double v_scale, limit;
};
struct ScaledAdamArgs {
  DType dtype;
  GradFactor grad_scale;
  double beta1, beta2, eps;
  bool clamp_before;
  std::span<const ScaledAdamChunk> chunks;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAM_SCALED_ADAM_KERNELS_H_
