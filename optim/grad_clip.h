// SPDX-License-Identifier: Apache-2.0

// Gradient clipping as functions, like torch.nn.utils.clip_grad_norm_ and clip_grad_value_. To clip
// by norm as part of an optimizer step, set StepOptions::max_norm instead; that saves a pass over
// the gradients.
//
//   Backward(loss);
//   double norm = optim::ClipGradNorm(model.Parameters(), {.max_norm = 1.0});
//   optimizer.step();
//
// The present gradients of all trainable parameters count as one vector; absent ones stay absent.
// Norms are accumulated in f64 in a fixed order. Gradients are changed in place, in their own
// dtype. Not a collective: the functions see this rank's gradients only.
//
// All three throw Error if a plugin keeps the gradients of a parameter on shards. ClipGradNorm and
// GradNorm also throw for a parameter that a plugin has cut.
#ifndef APOGEE_OPTIM_GRAD_CLIP_H_
#define APOGEE_OPTIM_GRAD_CLIP_H_

#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/optim/step/step_gate.h"

namespace apogee::optim {

struct ClipOptions {
  double max_norm = 1.0;
  NormKind norm_kind = NormKind::kL2;  // kL1: sum of magnitudes; kMax: the largest magnitude
  // If the norm is not finite: true throws Error and leaves the gradients unchanged. False scales
  // all of them by the factor that follows, which is 0 or NaN.
  bool error_if_nonfinite = false;
};

// Multiplies all gradients by min(1, max_norm / (norm + 1e-6)). Returns the norm before clipping.
double ClipGradNorm(const std::vector<autograd::ParameterPtr>& params, const ClipOptions& options);
// Clamps every element to [-limit, limit].
void ClipGradValue(const std::vector<autograd::ParameterPtr>& params, double limit);
// Returns the norm; changes nothing.
double GradNorm(const std::vector<autograd::ParameterPtr>& params, NormKind kind = NormKind::kL2);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_GRAD_CLIP_H_
