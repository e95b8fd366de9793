// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/momentum/lomo.h"

#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {

std::vector<OptionField<LomoOptions>> LomoOptions::Fields() {
  using O = LomoOptions;
  return {{"lr", &O::lr, OptionCheck::kAtLeastZero, "learning rate"},
          {"weight_decay", &O::weight_decay, OptionCheck::kAtLeastZero, "decoupled"},
          {"clip_grad_value", &O::clip_grad_value, OptionCheck::kAboveZero,
           "gradients are clamped to +- this; inf: not"}};
}

void LomoRule::Update(const RuleStep& step) {
  const LomoOptions& o = options(step.group);
  const LomoElement element{step.decision.inv_loss_scale, o.clip_grad_value, o.lr,
                            o.lr * o.weight_decay};
  RunElements(&OptimKernels::lomo, step.params, step.decision.clip_only(), element, {});
}

template class OptimizerOf<LomoRule>;

}  // namespace apogee::optim
