// SPDX-License-Identifier: Apache-2.0

// LOMO (Lv et al., "Full Parameter Fine-tuning for Large Language Models with Limited Resources",
// ACL 2024): SGD that updates inside backward. As soon as a gradient is final, its parameter is
// updated and the gradient is dropped, so it has no states, and the gradients of the whole model
// never exist at the same time.
//
//   optim::Lomo optimizer(model.Parameters(), {.lr = 0.01, .clip_grad_value = 1.0});
//   optimizer.set_step_options({.max_norm = 1.0});        // backward runs twice
//   optimizer.fused_backward(criterion(model(x), y));   // updates; no gradient is left
//   optimizer.step();                                   // finishes the step: report, listeners
//
//   g = clip_factor * clamp(grad / loss_scale, -clip_grad_value, clip_grad_value)
//   w = w - lr * weight_decay * w - lr * g
// max_norm applies to the norm of the gradients before they are clamped.
//
// fused_backward. Booster::backward calls it, so your training loop need not change. With
// StepOptions::max_norm, or a NonFinitePolicy other than kProceed, one decision for all parameters
// needs all gradients before the first update. backward then runs twice over the same graph
// (retain_graph): first to collect the norm of each gradient, then to update. Random masks
// (dropout) are the same in both. With kProceed and no max_norm it runs once. In both passes at
// most one finished gradient exists at a time, in addition to the one being computed. It multiplies
// the loss gradient by StepOptions::loss_scale. Where a GPU makes the decision, fused_backward does
// not wait for it: the second pass runs also if the step is skipped, and then changes nothing.
// It throws Error if step() has not been called since the last fused_backward, or a parameter
// already has a gradient: a gradient that has been used and dropped cannot be added to, so use one
// larger batch instead of accumulating. It also throws for a sharded parameter; a plugin that
// shards, such as GeminiPlugin, runs the same step on shards (step/fused_step.h).
// step() after an ordinary backward makes the same update.
//
// Don't let backward read a parameter other than through the graph: through a Parameter::data()
// that a forward used, for example, or in a function recomputed under NoGradGuard. The parameter
// may have been updated by then; when depends on the plugin.
//
// State bytes per element: 0 (4 for the fp32 masters of bf16 and f16 weights).
#ifndef APOGEE_OPTIM_MOMENTUM_LOMO_H_
#define APOGEE_OPTIM_MOMENTUM_LOMO_H_

#include <limits>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct LomoOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  double clip_grad_value = std::numeric_limits<double>::infinity();  // infinite: no clamping

  static std::vector<OptionField<LomoOptions>> Fields();
};

struct LomoRule : RuleOf<LomoOptions> {
  static constexpr const char* kName = "lomo";
  explicit LomoRule(std::vector<LomoOptions> groups) : RuleOf(kName, std::move(groups)) {}

  OptimizerTraits traits() override {
    return {.shards = true, .decides_on_device = true, .fused_backward = true};
  }
  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject&, std::vector<StateSpec>&) const override {}
};
using Lomo = OptimizerOf<LomoRule>;
extern template class OptimizerOf<LomoRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_MOMENTUM_LOMO_H_
