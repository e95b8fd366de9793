// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/factored/adafactor.h"

#include <cmath>

#include "apogee/optim/check_options.h"
#include "apogee/optim/factored/adafactor_step.h"

namespace apogee::optim {

AdafactorOptions AdafactorOptions::Torch() {
  return {.lr = 1e-2, .eps = {0, 1e-3}, .relative_step = false, .torch_style = true};
}

std::vector<std::string> AdafactorOptions::Problems() const {
  OptionProblems problems;
  if (relative_step && !std::isnan(lr)) {
    problems.Add(internal::Concat("lr is ", lr,
                                  " together with relative_step, which computes the rate; "
                                  "set relative_step=false to use lr"));
  }
  if (!relative_step && std::isnan(lr)) problems.Add("relative_step=false needs lr");
  if (!std::isnan(lr)) problems.AtLeastZero("lr", lr);
  if (warmup_init && !relative_step) problems.Add("warmup_init needs relative_step");
  torch_style ? problems.AtLeastZero("eps[0]", eps[0]) : problems.Positive("eps[0]", eps[0]);
  problems.AtLeastZero("eps[1]", eps[1]);
  problems.Positive("clip_threshold", clip_threshold);
  problems.Finite("decay_rate", decay_rate);
  if (decay_rate > 0)
    problems.Add(internal::Concat("decay_rate is ", decay_rate, ", must be at most 0"));
  problems.Decay("beta1", beta1);
  problems.AtLeastZero("weight_decay", weight_decay);
  if (torch_style && relative_step) problems.Add("torch_style needs relative_step=false");
  if (torch_style && beta1 != 0) problems.Add("torch_style has no beta1");
  return problems.list();
}

std::vector<OptionField<AdafactorOptions>> AdafactorOptions::Fields() {
  std::vector<OptionField<AdafactorOptions>> fields;
  AppendAdafactorFields(fields);
  fields.push_back({"torch_style", &AdafactorOptions::torch_style});
  return fields;
}

double RelativeRate(const AdafactorOptions& o, int64_t step) {
  const auto t = static_cast<double>(step);
  if (o.torch_style) return std::min(o.lr, 1 / std::sqrt(t));
  if (!o.relative_step) return o.lr;
  return std::min(o.warmup_init ? 1e-6 * t : 1e-2, 1 / std::sqrt(t));
}

Adafactor::Adafactor(std::vector<ParamGroup<AdafactorOptions>> groups)
    : RelativeStepOptimizer("adafactor", std::move(groups)),
      step_(std::make_unique<AdafactorStep>([this](int group) { return options(group); })) {
  static_assert(AdafactorStep::kNumPhases == 2, "as num_stat_phases() says");
}

Adafactor::~Adafactor() = default;

std::span<const StateSpec> Adafactor::StatesUnder(const ParamView& view,
                                                  const AdafactorOptions& options) const {
  return AdafactorStep::States(view, options);
}

void Adafactor::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  step_->Declare(phase, params, buffer);
}

void Adafactor::ComputeStats(int phase, std::span<const ActiveParam> params,
                             const StepDecision& decision, std::span<const StatBuffer> totals,
                             StatBuffer& buffer) {
  step_->Compute(phase, params, decision, totals, buffer);
}

void Adafactor::Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                       std::span<const StatBuffer> totals) {
  step_->Update(group, params, decision, totals);
}

template class TypedOptimizer<AdafactorOptions>;

}  // namespace apogee::optim
