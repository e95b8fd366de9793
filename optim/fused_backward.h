// SPDX-License-Identifier: Apache-2.0

// FusedBackwardOptimizer: optimizers that update each parameter inside backward, at the moment its
// gradient is final, and drop the gradient at once, so that gradients never exist all together
// (LOMO, Lv et al., ACL 2024).
//
//   optim::Lomo optimizer(model.Parameters(), {.lr = 0.01});
//   optimizer.set_step_options({.max_norm = 1.0});
//   optimizer.fused_backward(criterion(model(x), y));   // updates; no gradient is left
//   optimizer.step();                                   // finishes the step: report, hooks, scaler
//
// Booster::backward calls fused_backward for such an optimizer, so that the ordinary loop stays as
// it is.
//
// One decision for all parameters needs all gradients before the first update: with
// StepOptions::max_norm, or a NonFinitePolicy other than kProceed, backward runs twice over the
// same graph (retain_graph), first to collect the norm of each gradient, then to update; the random
// masks of both are the same. With kProceed and no max_norm it runs once. Loss scale: set
// StepOptions::loss_scale; fused_backward multiplies the loss gradient by it. In both passes at
// most one parameter's gradient lives at a time, beside the one that is being computed.
//
// Throws Error: when step() has not been called since the last fused_backward, or gradients are
// left over (a gradient that has been used up cannot be added to, so accumulation over
// micro-batches is not possible: use one larger batch); for a parameter that is sharded, or a
// buffer without a Parameter.
//
// step() on gradients that an ordinary backward left makes the same update.
//
// A plugin that shards parameters runs the same step on shards instead (fused_step.h): GeminiPlugin
// does. What backward reads of a parameter without giving it a gradient (Parameter::data() in a
// forward, a function under NoGradGuard that is run again) may have been updated by then, when
// depends on the plugin: do not.
#ifndef APOGEE_OPTIM_FUSED_BACKWARD_H_
#define APOGEE_OPTIM_FUSED_BACKWARD_H_

#include "apogee/tensor/tensor.h"

namespace apogee::optim {

class FusedBackwardOptimizer {
 public:
  virtual ~FusedBackwardOptimizer() = default;
  // Backward of `loss` (a scalar) and the update. A skipped update is reported, or under kThrow
  // thrown, by step().
  virtual void fused_backward(const Tensor& loss) = 0;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FUSED_BACKWARD_H_
