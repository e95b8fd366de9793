// SPDX-License-Identifier: Apache-2.0

// The settings and the outcome of one optimizer step that do not depend on which optimizer it is.
#ifndef APOGEE_OPTIM_STEP_H_
#define APOGEE_OPTIM_STEP_H_

#include <cstdint>
#include <limits>
#include <string>

#include "apogee/optim/kernels.h"
#include "apogee/optim/param_view.h"
#include "apogee/optim/step_gate.h"

namespace apogee::optim {

// What to do when a gradient, or the norm over all of them, is not finite.
enum class NonFinitePolicy {
  kSkip,     // leave weights and states as they are; the report says so
  kThrow,    // as kSkip, then throw Error naming the parameter
  kProceed,  // do not look
};

struct StepOptions {
  // Gradients are multiplied by max_norm / (norm + 1e-6) where that is below 1. 0: no clipping.
  double max_norm = 0;
  NormKind norm_kind = NormKind::kL2;  // kMax: the largest magnitude
  NonFinitePolicy nonfinite = NonFinitePolicy::kSkip;
  // The factor that the loss was multiplied by before backward; gradients are divided by it first.
  double loss_scale = 1;
};

// What phase 0 decides, the same on every rank, before any state moves.
struct StepDecision {
  bool skip = false;
  // Norm over all present gradients, loss scale removed; NaN when nobody asked for it, and where
  // ranks hold addends of gradients (ParamView::partial_grad).
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
  double clip_factor = 1;
  double inv_loss_scale = 1;
  // Not null while only the GPU knows what was decided: the fields above say nothing yet.
  const StepGate* gate = nullptr;
  // What the update multiplies a gradient with as it reads it, times `sign`.
  GradFactor grad_scale(double sign = 1) const {
    return gate != nullptr ? GradFactor(sign, gate)
                           : GradFactor(sign * (clip_factor * inv_loss_scale));
  }
};

struct StepReport : StepDecision {
  // Parameters updated; the others were frozen or had no gradient.
  int64_t num_updated = 0;
  // The first parameter with a gradient that is not finite, here or on another rank.
  std::string nonfinite_parameter;
};

// A parameter that takes part in a step: trainable, with a gradient on some rank.
struct ActiveParam {
  ParamView* view;
  int group;
  Tensor grad;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STEP_H_
