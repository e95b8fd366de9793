// SPDX-License-Identifier: Apache-2.0

// Kernel arguments of ScaledAdam; see kernels.h. A step runs them in this order. What they hand on
// lies in the device's memory, so that nobody waits for it.
#ifndef APOGEE_OPTIM_SCALED_ADAM_KERNELS_H_
#define APOGEE_OPTIM_SCALED_ADAM_KERNELS_H_

#include <span>

#include "apogee/optim/update_chunk.h"

namespace apogee::optim {

// sums: w g, and where `all` is set g^2 and w^2, else 0, with g = grad_scale * grad.
struct DotChunk {
  const void* weight;  // of the kernel's dtype
  const void* grad;
  DType grad_dtype;
  int64_t n;
  bool all;
  void* sums;  // three of stat_dtype
};
struct DotArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  std::span<const DotChunk> chunks;
};

// The size of one parameter, and how it goes on.
struct ScaledAdamSizeChunk {
  const void* sums;  // totals of DotChunk::sums
  double numel;      // of the logical parameter
  void* param_rms;   // states, of the kernel's dtype; null for one element
  void* scale_exp_avg_sq;
  void* scale_grad_sum;
  void* scale_grad_sumsq;
  bool first_step, opens_period, ends_period;
  double beta, root;   // beta2^period and sqrt(1 - beta^k), of its k-th period
  double norm_factor;  // of one element's gradient in the norm
  double rate;         // step_size; for more than one element times max(param_rms, min_rms)
  double* share;  // scaled_adam_shares: part of the squared norm that is clipped, |g|, param_rms
  double* step;   // scaled_adam_sizes: step_size and growth of the update
};
struct ScaledAdamSizeArgs {
  DType dtype, stat_dtype;
  const StepGate* gate;  // of median_clip, whose clip_factor g is multiplied with; or null
  int64_t period;
  double size_lr, one_minus_beta1, eps, min_rms, max_rms;
  bool icefall_2023;
  std::span<const ScaledAdamSizeChunk> chunks;
};

struct MedianClippingOptions {
  double scale = 0;  // 0: no clipping
  int64_t period = 100;
  // Set the threshold, doubled, after 10, 20 and 40 steps too, when the norms may still change
  // fast.
  bool early_estimates = true;
};

// As it lies in the device's memory, `period` norms behind it. Negative: absent.
struct MedianClippingState {
  double clip_step;
  double threshold;
  double num_clipped;
  double percent_clipped;
  double quartiles[5];
};

// One group's clip factor, from shares that follow each other (median_clipping.h).
struct MedianClipArgs {
  GradFactor grad_scale;
  MedianClippingOptions options;
  bool dropped_only;  // the update's gradients are not clipped, only dropped where the factor is 0
  const double* shares = nullptr;
  int64_t count = 0;
  MedianClippingState* state = nullptr;  // in and out, norms behind it; null without clipping
  StepGate* gate;  // out: grad_norm, clip_factor, the update's grad_scale, skip
};

// g = grad_scale * grad (0 where grad_scale is 0, whatever the gradient);  v = beta2 v + (1 -
// beta2) g^2; delta = beta1 delta + step_size * g / (sqrt(v_scale * v) + eps) + growth * w; w =
// clamp(w, +-limit) if clamp_before;  w += delta;  w = clamp(w, +-limit) otherwise.
struct ScaledAdamChunk : UpdateChunk {
  void* delta;
  void* exp_avg_sq;
  const double* step;  // step_size and growth
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

#endif  // APOGEE_OPTIM_SCALED_ADAM_KERNELS_H_
