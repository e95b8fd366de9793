// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/onebit/onebit_adam.h"

#include "apogee/optim/onebit/onebit_definitions.h"
#include "apogee/optim/onebit/onebit_updates.h"

namespace apogee::optim {

std::vector<std::string> OneBitAdamOptions::Problems() const {
  OptionProblems problems;
  CheckOneBitOptions(*this, problems);
  return problems.list();
}

std::vector<OptionField<OneBitAdamOptions>> OneBitAdamOptions::Fields() {
  return {{"lr", &OneBitAdamOptions::lr},
          {"betas", &OneBitAdamOptions::betas},
          {"eps", &OneBitAdamOptions::eps},
          {"weight_decay", &OneBitAdamOptions::weight_decay},
          {"freeze_step", &OneBitAdamOptions::freeze_step},
          {"non_freeze", &OneBitAdamOptions::non_freeze},
          {"shared_scale", &OneBitAdamOptions::shared_scale},
          {"reset_errors", &OneBitAdamOptions::reset_errors},
          {"deepspeed", &OneBitAdamOptions::deepspeed},
          {"amsgrad", &OneBitAdamOptions::amsgrad}};
}

std::span<const StateSpec> OneBitAdam::StatesUnder(const ParamView&,
                                                   const OneBitAdamOptions&) const {
  static constexpr StateSpec kStates[] = {{"exp_avg", StateKind::kElementwise},
                                          {"exp_avg_sq", StateKind::kElementwise}};
  return kStates;
}

void OneBitAdam::ComputeStats(int, std::span<const ActiveParam> params,
                              const StepDecision& decision, std::span<const StatBuffer>,
                              StatBuffer&) {
  momenta_.clear();
  std::vector<FeedbackJob> jobs;
  for (const ActiveParam& param : params) {
    if (!TakesLocalGrad(param.group)) continue;
    const double beta = options(param.group).betas[0];
    // The state itself changes only after all ranks know that the step is not skipped.
    const Tensor momentum = BlendMomentum(param, beta, (1 - beta) * decision.grad_scale());
    momenta_[param.view] = momentum;
    jobs.push_back({param.view, momentum});
  }
  Average(jobs);
  if (!NonFiniteAfterStats().empty()) momenta_.clear();
}

void OneBitAdam::WarmUp(int group, std::span<const ActiveParam> params,
                        const StepDecision& decision) {
  const OneBitAdamOptions& o = options(group);
  const bool counts_only = o.deepspeed && global_step() == 0;
  if (counts_only && !o.non_freeze) return;
  AdamWithoutCorrection(params, {.lr = counts_only ? 0 : o.lr,
                                 .betas = o.betas,
                                 .eps = o.eps,
                                 .weight_decay = o.weight_decay,
                                 .grad_scale = decision.grad_scale()});
}

void OneBitAdam::Update(int group, std::span<const ActiveParam> params,
                        const StepDecision& decision, std::span<const StatBuffer>) {
  if (!TakesLocalGrad(group)) return WarmUp(group, params, decision);
  const OneBitAdamOptions& o = options(group);
  std::vector<Tensor> momenta;
  for (const ActiveParam& param : params) {
    momenta.push_back(momenta_.extract(param.view).mapped());
    if (o.deepspeed) feedback().ApplyUserMask({param.view, momenta.back()});
  }
  FrozenAdamUpdate(
      params, momenta,
      {.beta = 0, .weight = 1, .step_size = o.lr, .eps = o.eps, .decay = o.weight_decay});
}

template class TypedOptimizer<OneBitAdamOptions>;
template class OneBitOptimizer<OneBitAdamOptions>;

}  // namespace apogee::optim
