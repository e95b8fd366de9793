// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/momentum/lion.h"

#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {

std::vector<OptionField<LionOptions>> LionOptions::Fields() {
  using O = LionOptions;
  return {{"lr", &O::lr, OptionCheck::kAtLeastZero, "learning rate; every element moves by it"},
          {"betas", &O::betas, OptionCheck::kDecay, "decay rates of the direction and of m"},
          {"weight_decay", &O::weight_decay, OptionCheck::kAtLeastZero, "decoupled"},
          {"maximize", &O::maximize, {}, "goes up the gradient"}};
}

void LionRule::Update(const RuleStep& step) {
  const LionOptions& o = options(step.group);
  const LionElement element{o.lr, o.lr * o.weight_decay, o.betas[0], o.betas[1]};
  RunElements(&OptimKernels::lion, step.params, step.decision.grad_scale(o.maximize ? -1 : 1),
              element, {"exp_avg"});
}

template class OptimizerOf<LionRule>;

}  // namespace apogee::optim
