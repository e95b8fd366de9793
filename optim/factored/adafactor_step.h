// SPDX-License-Identifier: Apache-2.0

// AdafactorStep: the step of Adafactor with its two statistics phases, shared by Adafactor and
// GaLoreAdafactor.
//
//   AdafactorStep step_{[this](int group) { return options(group); }};
//   step_.Declare(phase, params, buffer);                             // in DeclareStats
//   step_.Compute(phase, params, decision, totals, buffer);           // in ComputeStats
//   step_.Update(group, params, decision, totals);                    // in Update
//
// Pass the same `params` to all Declare and Compute calls of a step; Update gets those of one
// group. Their entries must be the first ones of each buffer. State names are Hugging Face's.
#ifndef APOGEE_OPTIM_FACTORED_ADAFACTOR_STEP_H_
#define APOGEE_OPTIM_FACTORED_ADAFACTOR_STEP_H_

#include <functional>

#include "apogee/optim/factored/adafactor_options.h"
#include "apogee/optim/factored/factored.h"

namespace apogee::optim {

class AdafactorStep {
 public:
  using OptionsOf = std::function<AdafactorOptions(int group)>;
  static constexpr int kNumPhases = 2;

  // If `rate` is not null, it replaces the options' learning rate.
  explicit AdafactorStep(OptionsOf options, const SizedRate* rate = nullptr)
      : options_(std::move(options)), rate_(rate) {}

  // The states of a parameter, as in adafactor.h.
  static std::span<const StateSpec> States(const ParamView& view, const AdafactorOptions& options);

  void Declare(int phase, std::span<const ActiveParam> params, StatBuffer& buffer);
  void Compute(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
               std::span<const StatBuffer> totals, StatBuffer& buffer);
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals);

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
