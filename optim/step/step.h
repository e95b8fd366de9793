// SPDX-License-Identifier: Apache-2.0

// Settings and outcome of an optimizer step that are the same for every optimizer.
//
//   optimizer.set_step_options({.max_norm = 1.0});
//   optimizer.step();
//   const StepReport& report = optimizer.last_step();
//   if (report.skip) LogWarning("skipped: ", report.nonfinite_parameter);
#ifndef APOGEE_OPTIM_STEP_STEP_H_
#define APOGEE_OPTIM_STEP_STEP_H_

#include <cstdint>
#include <limits>
#include <string>

#include "apogee/optim/param_view.h"
#include "apogee/optim/step/step_gate.h"

namespace apogee::optim {

// The behaviour of a step if a gradient, or the norm over all gradients, is not finite.
enum class NonFinitePolicy {
  kSkip,     // leaves weights and states unchanged and says so in the report
  kThrow,    // like kSkip, then throws Error naming the parameter
  kProceed,  // does not check
};

struct StepOptions {
  // Multiplies gradients by min(1, max_norm / (norm + 1e-6)), with the norm over all gradients of
  // the model. 0: no clipping.
  double max_norm = 0;
  NormKind norm_kind = NormKind::kL2;  // kMax: the largest magnitude
  NonFinitePolicy nonfinite = NonFinitePolicy::kSkip;
  // The factor that the loss was multiplied by before backward. Gradients are divided by it before
  // clipping.
  double loss_scale = 1;
};

// The decision at the beginning of a step, before any state changes. The same on every rank.
struct StepDecision {
  bool skip = false;
  // Norm over all present gradients, divided by the loss scale. NaN under kProceed without
  // max_norm, which need no norm, and for unreduced gradients (ParamView::partial_grad) unless
  // OptimizerTraits::clips_addends.
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
  double clip_factor = 1;
  double inv_loss_scale = 1;
  // Not null: only the GPU knows the decision so far, and the fields above are not set yet.
  const StepGate* gate = nullptr;
  // The factor by which the update multiplies a gradient as it reads it, times `sign`.
  GradFactor grad_scale(double sign = 1) const {
    return gate != nullptr ? GradFactor(sign, gate)
                           : GradFactor(sign * (clip_factor * inv_loss_scale));
  }
  operator GradFactor() const { return grad_scale(); }  // NOLINT: for updates of elements
  // The clip factor alone, for an update that divides by the loss scale itself.
  GradFactor clip_only() const {
    return gate != nullptr ? GradFactor::ClipOnly(gate) : GradFactor(clip_factor);
  }
};

struct StepReport : StepDecision {
  // The number of parameters updated. The others were frozen or had no gradient.
  int64_t num_updated = 0;
  // The first parameter whose gradient is not finite on this or another rank.
  std::string nonfinite_parameter;
};

// A parameter that takes part in a step: it is trainable and has a gradient on some rank. `grad` is
// zeros if only other ranks have one.
struct ActiveParam {
  ParamView* view;
  int group;
  Tensor grad;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STEP_STEP_H_
