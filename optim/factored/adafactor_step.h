// SPDX-License-Identifier: Apache-2.0

// AdafactorStep: the step of Adafactor with its two statistics phases, shared by Adafactor and
// GaLoreAdafactor.
//
//   AdafactorStep step_{[this](int group) { return options(group); }};
//   step_.Declare(phase, params, buffer);                             // in DeclareStats
//   step_.Compute(phase, step, buffer);                               // in ComputeStats
//   step_.Update(step);                                               // in Update
//
// Pass the same `params` to all Declare and Compute calls of a step; Update gets those of one
// group. Their entries must be the first ones of each buffer. State names are Hugging Face's.
// AdafactorOf and AdafactorFields are for an options struct that has Adafactor's members.
#ifndef APOGEE_OPTIM_FACTORED_ADAFACTOR_STEP_H_
#define APOGEE_OPTIM_FACTORED_ADAFACTOR_STEP_H_

#include <functional>
#include <vector>

#include "apogee/optim/factored/adafactor.h"
#include "apogee/optim/factored/factored.h"

namespace apogee::optim {

// rho (adafactor.h) of update number `step`, counted from 1.
double RelativeRate(const AdafactorOptions& o, int64_t step);

// AdafactorOptions and option fields from a struct with all of its members except torch_style.
template <typename Options>
AdafactorOptions AdafactorOf(const Options& o) {
  return {o.lr,         o.eps,          o.clip_threshold,  o.decay_rate,
          o.beta1,      o.weight_decay, o.scale_parameter, o.relative_step,
          o.warmup_init};
}
template <typename Options>
std::vector<OptionField<Options>> AdafactorFields() {
  using O = Options;
  using enum OptionCheck;
  return {{"lr", &O::lr, {}, "learning rate; only without relative_step"},
          {"eps", &O::eps, {}, "added to g^2; lower bound of rms(w)"},
          {"clip_threshold", &O::clip_threshold, kPositive, "bound of rms(u)"},
          {"decay_rate", &O::decay_rate, kFinite, "beta2 = 1 - t^decay_rate"},
          {"beta1", &O::beta1, kDecay, "decay rate of the momentum; 0: none"},
          {"weight_decay", &O::weight_decay, kAtLeastZero, "decoupled, times the rate"},
          {"scale_parameter", &O::scale_parameter, {}, "the rate is relative to rms(w)"},
          {"relative_step", &O::relative_step, {}, "the rate follows from the step count"},
          {"warmup_init", &O::warmup_init, {}, "and rises from 1e-6"}};
}

class AdafactorStep {
 public:
  using OptionsOf = std::function<AdafactorOptions(int group)>;
  static constexpr int kNumPhases = 2;

  // If `rate` is not null, it replaces the options' learning rate.
  explicit AdafactorStep(OptionsOf options, const SizedRate* rate = nullptr)
      : options_(std::move(options)), rate_(rate) {}

  // The states of a parameter, as in adafactor.h.
  static void AppendStates(const ParamView& view, const AdafactorOptions& options,
                           std::vector<StateSpec>& specs);

  void Declare(int phase, std::span<const ActiveParam> params, StatBuffer& buffer);
  void Compute(int phase, const RuleStep& step, StatBuffer& buffer);
  void Update(const RuleStep& step);

 private:
  // Computes the row and column factors from the totals of phase 0, for update number step() +
  // `ahead` of each parameter. `store` and `gate`: see FactorArgs.
  void ComputeFactors(int group, std::span<const ActiveParam> params, size_t first, int64_t ahead,
                      bool store, const StatBuffer& totals, const StepGate* gate = nullptr);

  OptionsOf options_;
  const SizedRate* rate_;
  FactoredWork work_;
};

// Adafactor's step for a low-rank gradient `grad` (compute dtype) with the rate `alpha`. Returns
// the update -alpha * u (with beta1, -m), shaped like `grad`, and updates the states of `view`,
// which must be whole on this rank. No weight decay.
Tensor AdafactorLowRankStep(const AdafactorOptions& options, const SizedRate& alpha,
                            const ParamView& view, const Tensor& grad,
                            const StepDecision& decision);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FACTORED_ADAFACTOR_STEP_H_
