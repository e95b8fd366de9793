// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/factored/adafactor.h"

#include <cmath>

#include "apogee/optim/factored/adafactor_step.h"

namespace apogee::optim {

AdafactorOptions AdafactorOptions::Torch() {
  return {.lr = 1e-2, .eps = {0, 1e-3}, .relative_step = false, .torch_style = true};
}

std::vector<OptionField<AdafactorOptions>> AdafactorOptions::Fields() {
  using O = AdafactorOptions;
  return JoinFields<O>(
      {AdafactorFields<O>(), {{"torch_style", &O::torch_style, {}, "as torch.optim's"}}});
}

void AdafactorOptions::Check(OptionProblems& problems) const {
  if (relative_step && !std::isnan(lr)) {
    problems.Add(internal::Concat("lr is ", lr,
                                  " together with relative_step, which computes the rate; "
                                  "set relative_step=false to use lr"));
  }
  if (!relative_step && std::isnan(lr)) problems.Add("relative_step=false needs lr");
  if (!std::isnan(lr)) problems.Run(OptionCheck::kAtLeastZero, "lr", lr);
  if (warmup_init && !relative_step) problems.Add("warmup_init needs relative_step");
  problems.Run(torch_style ? OptionCheck::kAtLeastZero : OptionCheck::kPositive, "eps[0]", eps[0]);
  problems.Run(OptionCheck::kAtLeastZero, "eps[1]", eps[1]);
  if (decay_rate > 0) {
    problems.Add(internal::Concat("decay_rate is ", decay_rate, ", must be at most 0"));
  }
  if (torch_style && relative_step) problems.Add("torch_style needs relative_step=false");
  if (torch_style && beta1 != 0) problems.Add("torch_style has no beta1");
}

double RelativeRate(const AdafactorOptions& o, int64_t step) {
  const auto t = static_cast<double>(step);
  if (o.torch_style) return std::min(o.lr, 1 / std::sqrt(t));
  if (!o.relative_step) return o.lr;
  return std::min(o.warmup_init ? 1e-6 * t : 1e-2, 1 / std::sqrt(t));
}

AdafactorRule::AdafactorRule(std::vector<AdafactorOptions> groups)
    : RuleOf(kName, std::move(groups)),
      step_(std::make_unique<AdafactorStep>([this](int group) { return options(group); })) {
  static_assert(AdafactorStep::kNumPhases == 2, "as traits() says");
}

AdafactorRule::~AdafactorRule() = default;

void AdafactorRule::States(const Subject& of, std::vector<StateSpec>& specs) const {
  AdafactorStep::AppendStates(of.view, of.options, specs);
}

void AdafactorRule::DeclareStats(int phase, std::span<const ActiveParam> params,
                                 StatBuffer& buffer) {
  step_->Declare(phase, params, buffer);
}

std::string AdafactorRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  step_->Compute(phase, step, buffer);
  return "";
}

void AdafactorRule::Update(const RuleStep& step) { step_->Update(step); }

template class OptimizerOf<AdafactorRule>;

}  // namespace apogee::optim
