// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/momentum/sgd.h"

#include "apogee/optim/check_options.h"
#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {
namespace {
constexpr StateSpec kSgdStates[] = {{"momentum_buffer", StateKind::kElementwise}};
}  // namespace

std::vector<std::string> SgdOptions::Problems() const {
  OptionProblems problems;
  problems.AtLeastZero("lr", lr);
  problems.AtLeastZero("momentum", momentum);
  problems.AtLeastZero("weight_decay", weight_decay);
  problems.Finite("dampening", dampening);
  if (nesterov && !(momentum > 0)) problems.Add("nesterov needs momentum above 0");
  if (nesterov && dampening != 0) {
    problems.Add(internal::Concat("nesterov needs dampening 0, got ", dampening));
  }
  return problems.list();
}

std::vector<OptionField<SgdOptions>> SgdOptions::Fields() {
  return {{"lr", &SgdOptions::lr},
          {"momentum", &SgdOptions::momentum},
          {"dampening", &SgdOptions::dampening},
          {"weight_decay", &SgdOptions::weight_decay},
          {"nesterov", &SgdOptions::nesterov},
          {"maximize", &SgdOptions::maximize}};
}

std::span<const StateSpec> Sgd::StatesUnder(const ParamView&, const SgdOptions& options) const {
  return options.momentum != 0 ? std::span<const StateSpec>(kSgdStates)
                               : std::span<const StateSpec>();
}

void Sgd::Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                 std::span<const StatBuffer>) {
  const SgdOptions& o = options(group);
  const GradFactor factor = decision.grad_scale(o.maximize ? -1 : 1);
  if (o.momentum == 0) {
    const SgdElement element{o.lr, o.weight_decay};
    return RunElements(&OptimKernels::sgd, params, factor, element, {});
  }
  const auto element = [&](const ActiveParam& param) {
    // The buffer is zeros at first; without dampening it then becomes the first gradient.
    const double buf_scale = param.view->step() == 1 ? 1 : 1 - o.dampening;
    return SgdMomentumElement{o.lr, o.weight_decay, o.momentum, buf_scale, o.nesterov};
  };
  RunElements(&OptimKernels::sgd_momentum, params, factor, element, {"momentum_buffer"});
}

template class TypedOptimizer<SgdOptions>;

}  // namespace apogee::optim
