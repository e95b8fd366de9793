// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/onebit/onebit_adam.h"

#include "apogee/optim/onebit/onebit_definitions.h"
#include "apogee/optim/onebit/onebit_updates.h"

namespace apogee::optim {

std::vector<OptionField<OneBitAdamOptions>> OneBitAdamOptions::Fields() {
  return OneBitFields<OneBitAdamOptions>();
}
void OneBitAdamOptions::Check(OptionProblems& problems) const {
  CheckOneBitOptions(*this, problems);
}

std::string OneBitAdamRule::ComputeStats(int, const RuleStep& step, StatBuffer&) {
  momenta_.clear();
  std::vector<FeedbackJob> jobs;
  for (const ActiveParam& param : step.params) {
    if (!TakesLocalGrad(param.group)) continue;
    const double beta = options(param.group).betas[0];
    // The state itself changes only after all ranks know that the step is not skipped.
    const Tensor momentum = BlendMomentum(param, beta, (1 - beta) * step.decision.grad_scale());
    momenta_[param.view] = momentum;
    jobs.push_back({param.view, momentum});
  }
  std::string bad = Average(jobs);
  if (!bad.empty()) momenta_.clear();
  return bad;
}

void OneBitAdamRule::WarmUp(const RuleStep& step) {
  const OneBitAdamOptions& o = options(step.group);
  const bool counts_only = o.deepspeed && global_step() == 0;
  if (counts_only && !o.non_freeze) return;
  AdamWithoutCorrection(step.params, {.lr = counts_only ? 0 : o.lr,
                                      .betas = o.betas,
                                      .eps = o.eps,
                                      .weight_decay = o.weight_decay,
                                      .grad_scale = step.decision.grad_scale()});
}

void OneBitAdamRule::Update(const RuleStep& step) {
  if (!TakesLocalGrad(step.group)) return WarmUp(step);
  const OneBitAdamOptions& o = options(step.group);
  std::vector<Tensor> momenta;
  for (const ActiveParam& param : step.params) {
    momenta.push_back(momenta_.extract(param.view).mapped());
    if (o.deepspeed) feedback().ApplyUserMask({param.view, momenta.back()});
  }
  FrozenAdamUpdate(
      step.params, momenta,
      {.beta = 0, .weight = 1, .step_size = o.lr, .eps = o.eps, .decay = o.weight_decay});
}

template class OneBitRule<OneBitAdamOptions>;
template class OptimizerOf<OneBitAdamRule>;

}  // namespace apogee::optim
