// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/adam/adam.h"

#include <cmath>

#include "apogee/optim/adam/moment_fields.h"
#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {
namespace {

template <typename Options>
std::vector<OptionField<Options>> CommonFields(const char* decay) {
  using O = Options;
  return JoinFields<O>(
      {MomentFields<O>(decay),
       {{"amsgrad", &O::amsgrad, {}, "divides by the largest second moment so far"},
        {"maximize", &O::maximize, {}, "goes up the gradient"},
        {"correct_bias", &O::correct_bias, {}, "corrects the moments' start at zero"}}});
}

// The kernel's settings from either options type.
struct Decay {
  DecayKind kind = DecayKind::kNone;
  double decay = 0;
  bool hf_style = false;
};
Decay DecayOf(const AdamOptions& o) {
  if (o.weight_decay == 0) return {};
  return {DecayKind::kL2, o.weight_decay, false};
}
Decay DecayOf(const AdamWOptions& o) {
  if (o.weight_decay == 0) return {DecayKind::kNone, 0, o.hf_style};
  return {o.hf_style ? DecayKind::kAfter : DecayKind::kBefore, o.lr * o.weight_decay, o.hf_style};
}

template <typename Options>
AdamSettings SettingsOf(const Options& o, int64_t step) {
  const Decay d = DecayOf(o);
  const auto t = static_cast<double>(step);
  const double correction1 = o.correct_bias ? 1 - std::pow(o.betas[0], t) : 1;
  const double root2 = o.correct_bias ? std::sqrt(1 - std::pow(o.betas[1], t)) : 1;
  return {.decay_kind = d.kind,
          .decay = d.decay,
          .beta1 = o.betas[0],
          .beta2 = o.betas[1],
          .eps = o.eps,
          .step_size = o.lr / correction1 * (d.hf_style ? root2 : 1),
          .root_scale = d.hf_style ? 1 : 1 / root2};
}

}  // namespace

std::vector<OptionField<AdamOptions>> AdamOptions::Fields() {
  return CommonFields<AdamOptions>("L2: added to the gradient");
}
std::vector<OptionField<AdamWOptions>> AdamWOptions::Fields() {
  using O = AdamWOptions;
  return JoinFields<O>({CommonFields<O>("decoupled: shrinks the weights by lr * weight_decay"),
                        {{"hf_style", &O::hf_style, {}, "as in Hugging Face transformers"}}});
}
void AdamWOptions::Check(OptionProblems& problems) const {
  if (hf_style && amsgrad) problems.Add("hf_style has no amsgrad");
}
AdamSettings AdamWSettings(const AdamWOptions& options, int64_t step) {
  return SettingsOf(options, step);
}
AdamWOptions AdamWOptions::HuggingFace() {
  return {.eps = 1e-6, .weight_decay = 0, .hf_style = true};
}

template <typename O>
void AdamRule<O>::Update(const RuleStep& step) {
  const O& o = this->options(step.group);
  const auto settings = [&](const ActiveParam& p) { return SettingsOf(o, p.view->step()); };
  const GradFactor factor = step.decision.grad_scale(o.maximize ? -1 : 1);
  if (o.amsgrad) {
    RunElements(&OptimKernels::adam_amsgrad, step.params, factor, settings,
                {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"});
  } else {
    RunElements(&OptimKernels::adam, step.params, factor, settings, {"exp_avg", "exp_avg_sq"});
  }
}

template class OptimizerOf<AdamRule<AdamOptions>>;
template class OptimizerOf<AdamRule<AdamWOptions>>;

}  // namespace apogee::optim
