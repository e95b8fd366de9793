// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/momentum/sgd.h"

#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {

std::vector<OptionField<SgdOptions>> SgdOptions::Fields() {
  using O = SgdOptions;
  return {
      {"lr", &O::lr, OptionCheck::kAtLeastZero, "learning rate"},
      {"momentum", &O::momentum, OptionCheck::kAtLeastZero, "decay rate of the buffer; 0: none"},
      {"dampening", &O::dampening, OptionCheck::kFinite, "taken off a gradient's weight in it"},
      {"weight_decay", &O::weight_decay, OptionCheck::kAtLeastZero, "L2: added to the gradient"},
      {"nesterov", &O::nesterov, {}, "looks ahead; needs momentum and no dampening"},
      {"maximize", &O::maximize, {}, "goes up the gradient"}};
}

void SgdOptions::Check(OptionProblems& problems) const {
  if (nesterov && !(momentum > 0)) problems.Add("nesterov needs momentum above 0");
  if (nesterov && dampening != 0) {
    problems.Add(internal::Concat("nesterov needs dampening 0, got ", dampening));
  }
}

void SgdRule::Update(const RuleStep& step) {
  const SgdOptions& o = options(step.group);
  const GradFactor factor = step.decision.grad_scale(o.maximize ? -1 : 1);
  if (o.momentum == 0) {
    const SgdElement element{o.lr, o.weight_decay};
    return RunElements(&OptimKernels::sgd, step.params, factor, element, {});
  }
  const auto element = [&](const ActiveParam& param) {
    // The buffer is zeros at first; without dampening it then becomes the first gradient.
    const double buf_scale = param.view->step() == 1 ? 1 : 1 - o.dampening;
    return SgdMomentumElement{o.lr, o.weight_decay, o.momentum, buf_scale, o.nesterov};
  };
  RunElements(&OptimKernels::sgd_momentum, step.params, factor, element, {"momentum_buffer"});
}

template class OptimizerOf<SgdRule>;

}  // namespace apogee::optim
