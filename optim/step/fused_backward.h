// SPDX-License-Identifier: Apache-2.0

// FusedBackwardOptimizer: optimizers that update each parameter inside backward. As soon as a
// gradient is final, its parameter is updated and the gradient is dropped, so the gradients of the
// whole model never exist at the same time (LOMO, Lv et al., ACL 2024).
//
//   optim::Lomo optimizer(model.Parameters(), {.lr = 0.01});
//   optimizer.set_step_options({.max_norm = 1.0});
//   optimizer.fused_backward(criterion(model(x), y));   // updates; no gradient is left
//   optimizer.step();                                   // finishes the step: report, hooks, scaler
//
// Booster::backward calls fused_backward for such an optimizer, so your training loop need not
// change.
//
// With StepOptions::max_norm, or a NonFinitePolicy other than kProceed, one decision for all
// parameters needs all gradients before the first update. backward then runs twice over the same
// graph (retain_graph): first to collect the norm of each gradient, then to update. Random masks
// (dropout) are the same in both. With kProceed and no max_norm it runs once. In both passes at
// most one finished gradient exists at a time, in addition to the one being computed.
//
// Loss scale: set StepOptions::loss_scale; fused_backward multiplies the loss gradient by it.
//
// Throws Error
//   - if step() has not been called since the last fused_backward, or a parameter already has a
//     gradient. Accumulation over micro-batches is not possible, because a gradient that has been
//     used and dropped cannot be added to: use one larger batch.
//   - for a parameter that is sharded, or a buffer without a Parameter.
//
// step() after an ordinary backward makes the same update.
//
// A plugin that shards parameters, such as GeminiPlugin, runs the same step on shards
// (fused_step.h). Don't let backward read a parameter other than through the graph: through a
// Parameter::data() that a forward used, for example, or in a function recomputed under
// NoGradGuard. The parameter may have been updated by then; when depends on the plugin.
#ifndef APOGEE_OPTIM_STEP_FUSED_BACKWARD_H_
#define APOGEE_OPTIM_STEP_FUSED_BACKWARD_H_

#include "apogee/tensor/tensor.h"

namespace apogee::optim {

class FusedBackwardOptimizer {
 public:
  virtual ~FusedBackwardOptimizer() = default;
  // Runs backward of the scalar `loss` and the update. If the update is skipped, step() reports it,
  // or throws Error under kThrow.
  virtual void fused_backward(const Tensor& loss) = 0;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STEP_FUSED_BACKWARD_H_
