// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/adam/adam.h"

#include <cmath>
#include <type_traits>

#include "apogee/optim/check_options.h"
#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {
namespace {

constexpr StateSpec kAdamStates[] = {{"exp_avg", StateKind::kElementwise},
                                     {"exp_avg_sq", StateKind::kElementwise},
                                     {"max_exp_avg_sq", StateKind::kElementwise}};

template <typename Options>
std::vector<std::string> CommonProblems(const Options& o) {
  OptionProblems problems;
  problems.AtLeastZero("lr", o.lr);
  problems.Decay("betas[0]", o.betas[0]);
  problems.Decay("betas[1]", o.betas[1]);
  problems.AtLeastZero("eps", o.eps);
  problems.AtLeastZero("weight_decay", o.weight_decay);
  return problems.list();
}

template <typename Options>
std::vector<OptionField<Options>> CommonFields() {
  return {{"lr", &Options::lr},
          {"betas", &Options::betas},
          {"eps", &Options::eps},
          {"weight_decay", &Options::weight_decay},
          {"amsgrad", &Options::amsgrad},
          {"maximize", &Options::maximize},
          {"correct_bias", &Options::correct_bias}};
}

// The kernel's settings from either options type.
struct Rule {
  DecayKind decay_kind = DecayKind::kNone;
  double decay = 0;
  bool hf_style = false;
};
Rule RuleOf(const AdamOptions& o) {
  if (o.weight_decay == 0) return {};
  return {DecayKind::kL2, o.weight_decay, false};
}
Rule RuleOf(const AdamWOptions& o) {
  if (o.weight_decay == 0) return {DecayKind::kNone, 0, o.hf_style};
  return {o.hf_style ? DecayKind::kAfter : DecayKind::kBefore, o.lr * o.weight_decay, o.hf_style};
}

template <typename Options>
AdamSettings SettingsOf(const Options& o, int64_t step) {
  const Rule rule = RuleOf(o);
  const auto t = static_cast<double>(step);
  const double correction1 = o.correct_bias ? 1 - std::pow(o.betas[0], t) : 1;
  const double root2 = o.correct_bias ? std::sqrt(1 - std::pow(o.betas[1], t)) : 1;
  return {.decay_kind = rule.decay_kind,
          .decay = rule.decay,
          .beta1 = o.betas[0],
          .beta2 = o.betas[1],
          .eps = o.eps,
          .step_size = o.lr / correction1 * (rule.hf_style ? root2 : 1),
          .root_scale = rule.hf_style ? 1 : 1 / root2};
}

}  // namespace

std::vector<std::string> AdamOptions::Problems() const { return CommonProblems(*this); }
std::vector<OptionField<AdamOptions>> AdamOptions::Fields() { return CommonFields<AdamOptions>(); }

std::vector<std::string> AdamWOptions::Problems() const {
  std::vector<std::string> problems = CommonProblems(*this);
  if (hf_style && amsgrad) problems.emplace_back("hf_style has no amsgrad");
  return problems;
}
std::vector<OptionField<AdamWOptions>> AdamWOptions::Fields() {
  std::vector<OptionField<AdamWOptions>> fields = CommonFields<AdamWOptions>();
  fields.push_back({"hf_style", &AdamWOptions::hf_style});
  return fields;
}
AdamWOptions AdamWOptions::HuggingFace() {
  return {.eps = 1e-6, .weight_decay = 0, .hf_style = true};
}

template <typename Options>
std::span<const StateSpec> AdamFamily<Options>::StatesUnder(const ParamView&,
                                                            const Options& options) const {
  return std::span<const StateSpec>(kAdamStates).first(options.amsgrad ? 3 : 2);
}

template <typename Options>
void AdamFamily<Options>::Update(int group, std::span<const ActiveParam> params,
                                 const StepDecision& decision, std::span<const StatBuffer>) {
  const Options& o = this->options(group);
  const auto settings = [&](const ActiveParam& p) { return SettingsOf(o, p.view->step()); };
  const GradFactor factor = decision.grad_scale(o.maximize ? -1 : 1);
  if (o.amsgrad) {
    RunElements(&OptimKernels::adam_amsgrad, params, factor, settings,
                {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"});
  } else {
    RunElements(&OptimKernels::adam, params, factor, settings, {"exp_avg", "exp_avg_sq"});
  }
}

template class TypedOptimizer<AdamOptions>;
template class TypedOptimizer<AdamWOptions>;
template class AdamFamily<AdamOptions>;
template class AdamFamily<AdamWOptions>;

}  // namespace apogee::optim
