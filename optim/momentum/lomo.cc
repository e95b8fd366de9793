// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/momentum/lomo.h"

#include "apogee/optim/check_options.h"
#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {

std::vector<std::string> LomoOptions::Problems() const {
  OptionProblems problems;
  problems.AtLeastZero("lr", lr);
  problems.AtLeastZero("weight_decay", weight_decay);
  if (!(clip_grad_value > 0)) {
    problems.Add(internal::Concat("clip_grad_value is ", clip_grad_value,
                                  ", must be above 0 (inf: no clamping)"));
  }
  return problems.list();
}

std::vector<OptionField<LomoOptions>> LomoOptions::Fields() {
  return {{"lr", &LomoOptions::lr},
          {"weight_decay", &LomoOptions::weight_decay},
          {"clip_grad_value", &LomoOptions::clip_grad_value}};
}

void Lomo::Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                  std::span<const StatBuffer>) {
  const LomoOptions& o = options(group);
  const LomoElement element{decision.inv_loss_scale, o.clip_grad_value, o.lr,
                            o.lr * o.weight_decay};
  RunElements(&OptimKernels::lomo, params, decision.clip_only(), element, {});
}

template class TypedOptimizer<LomoOptions>;

}  // namespace apogee::optim
