// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/momentum/lion.h"

#include "apogee/optim/check_options.h"
#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {

std::vector<std::string> LionOptions::Problems() const {
  OptionProblems problems;
  problems.AtLeastZero("lr", lr);
  problems.Decay("betas[0]", betas[0]);
  problems.Decay("betas[1]", betas[1]);
  problems.AtLeastZero("weight_decay", weight_decay);
  return problems.list();
}

std::vector<OptionField<LionOptions>> LionOptions::Fields() {
  return {{"lr", &LionOptions::lr},
          {"betas", &LionOptions::betas},
          {"weight_decay", &LionOptions::weight_decay},
          {"maximize", &LionOptions::maximize}};
}

std::span<const StateSpec> Lion::StatesUnder(const ParamView&, const LionOptions&) const {
  static constexpr StateSpec kStates[] = {{"exp_avg", StateKind::kElementwise}};
  return kStates;
}

void Lion::Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                  std::span<const StatBuffer>) {
  const LionOptions& o = options(group);
  const LionElement element{o.lr, o.lr * o.weight_decay, o.betas[0], o.betas[1]};
  RunElements(&OptimKernels::lion, params, decision.grad_scale(o.maximize ? -1 : 1), element,
              {"exp_avg"});
}

template class TypedOptimizer<LionOptions>;

}  // namespace apogee::optim
