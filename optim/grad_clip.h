// SPDX-License-Identifier: Apache-2.0

// Gradient clipping as functions of their own, as torch.nn.utils.clip_grad_norm_ and
// clip_grad_value_. To clip by norm as part of an optimizer step, which saves a pass over the
// gradients, set StepOptions::max_norm instead.
//
//   Backward(loss);
//   double norm = optim::ClipGradNorm(model.Parameters(), {.max_norm = 1.0});
//   optimizer.step();
//
// All present gradients of trainable parameters count as one vector; absent ones are left absent.
// Norms are accumulated in f64 in a fixed order. Gradients are rewritten in place, in their own
// dtype. Throws Error for parameters whose gradients a plugin keeps on shards: they are not here.
// Norms throw for parameters that a plugin has cut.
#ifndef APOGEE_OPTIM_GRAD_CLIP_H_
#define APOGEE_OPTIM_GRAD_CLIP_H_

#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/optim/kernels.h"

namespace apogee::optim {

struct ClipOptions {
  double max_norm = 1.0;
  NormKind norm_kind = NormKind::kL2;  // kL1: sum of magnitudes; kMax: the largest magnitude
  // Throw Error, gradients unchanged, when the norm is not finite. Else such a norm spreads into
  // them.
  bool error_if_nonfinite = false;
};

// Multiplies all gradients by max_norm / (norm + 1e-6) where that is below 1. Returns the norm
// before.
double ClipGradNorm(const std::vector<autograd::ParameterPtr>& params, const ClipOptions& options);
// Limits every element to [-limit, limit].
void ClipGradValue(const std::vector<autograd::ParameterPtr>& params, double limit);
// The norm alone.
double GradNorm(const std::vector<autograd::ParameterPtr>& params, NormKind kind = NormKind::kL2);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_GRAD_CLIP_H_
