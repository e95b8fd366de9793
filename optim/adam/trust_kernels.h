// SPDX-License-Identifier: Apache-2.0

// Arguments of the kernels of LAMB and LARS, which have a trust ratio per tensor, and of LAMB's
// clipping by the norm of all gradients (norm_clip). The *_sums
// kernels write this rank's partials, [sum of w^2, sum of u^2] per parameter in `stat_dtype`; the
// update kernels read the totals.
//
//   LambChunk chunk = MakeUpdateChunk<LambChunk>(param);      // then its own fields
//   OptimKernelsFor(context).lamb_sums(context, args);        // writes partials to chunk.sums
//   ... reduce over ranks ...
//   OptimKernelsFor(context).lamb(context, args);             // reads totals from chunk.sums
#ifndef APOGEE_OPTIM_ADAM_TRUST_KERNELS_H_
#define APOGEE_OPTIM_ADAM_TRUST_KERNELS_H_

#include <span>

#include "apogee/optim/core/update_chunk.h"

namespace apogee::optim {

struct TrustChunk : UpdateChunk {
  void* sums;    // partials (out of *_sums) or totals (in)
  bool trusted;  // false: the ratio is 1
};

// LAMB, with g = grad_scale * grad:
//   m = beta1 m + grad_weight g
//   v = beta2 v + (1 - beta2) g^2
//   u = mean_scale m / (root_scale sqrt(v) + eps) + decay w
//   ratio = clamp(|w| / |u|, min_ratio, max_ratio), or 1 if |w| or |u| is 0
//   w -= step_size ratio u
// lamb_sums stores neither m nor v, so a step that fails in a reduction has changed nothing.
struct LambChunk : TrustChunk {
  void* exp_avg;
  void* exp_avg_sq;
  double mean_scale, root_scale, step_size;  // the bias corrections of the parameter's own step
};
struct LambArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  double beta1, grad_weight, beta2, eps, decay, min_ratio, max_ratio;
  std::span<const LambChunk> chunks;
};

// LAMB's pre_clip_norm. With norm the root of the sum of the `count` numbers of `squares` (totals,
// before grad_scale), writes a gate that skips with grad_scale, and whose grad_scale is
//   grad_scale / max(1, grad_scale norm / limit)
struct NormClipArgs {
  DType stat_dtype;
  GradFactor grad_scale;
  const void* squares;
  int64_t count;
  double limit;
  StepGate* gate;  // in the device's memory
};

// LARS, with g = grad_scale * grad, which is also u above:
//   ratio = coefficient |w| / (|g| + decay |w| + eps), or 1 if |w| or |g| is 0
//   d = ratio (g + decay w)
//   buf = momentum buf + d
//   w -= lr (nesterov ? d + momentum buf : buf)
// Without momentum (buf null): w -= lr d.
struct LarsChunk : TrustChunk {
  void* momentum_buffer;
};
struct LarsArgs {
  DType dtype, stat_dtype;
  GradFactor grad_scale;
  double lr, momentum, decay, coefficient, eps;
  bool nesterov;
  std::span<const LarsChunk> chunks;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAM_TRUST_KERNELS_H_
