// SPDX-License-Identifier: Apache-2.0

// The step of Adafactor in its two phases, for the optimizers that have it (Adafactor,
// GaLoreAdafactor).
//
//   AdafactorStep step_{[this](int group) { return options(group); }};
//   step_.Declare(phase, params, buffer);                             // DeclareStats
//   step_.Compute(phase, params, decision, totals, buffer);           // ComputeStats
//   step_.Update(group, params, decision, totals);                    // Update
//
// `params` are the same in all calls of a step, but for Update, which gets those of one group;
// their entries are the first of each buffer. State names are Hugging Face's.
#ifndef APOGEE_OPTIM_ADAFACTOR_STEP_H_
#define APOGEE_OPTIM_ADAFACTOR_STEP_H_

#include <functional>

#include "apogee/optim/adafactor_options.h"
#include "apogee/optim/factored.h"

namespace apogee::optim {

class AdafactorStep {
 public:
  using OptionsOf = std::function<AdafactorOptions(int group)>;
  static constexpr int kNumPhases = 2;

  // `rate` takes the place of the options' learning rate where it is not null.
  explicit AdafactorStep(OptionsOf options, const SizedRate* rate = nullptr)
      : options_(std::move(options)), rate_(rate) {}

  // The states of a parameter that is not projected.
  static std::span<const StateSpec> States(const ParamView& view, const AdafactorOptions& options);

  void Declare(int phase, std::span<const ActiveParam> params, StatBuffer& buffer);
  void Compute(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
               std::span<const StatBuffer> totals, StatBuffer& buffer);
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals);

 private:
  // The factors from the totals of phase 0, for update `ahead` steps after the count; `store` and
  // `gate` as in FactorArgs.
  void ComputeFactors(int group, std::span<const ActiveParam> params, size_t first, int64_t ahead,
                      bool store, const StatBuffer& totals, const StepGate* gate = nullptr);

  OptionsOf options_;
  const SizedRate* rate_;
  FactoredWork work_;
};

// Adafactor's step of a low-rank gradient with the rate `alpha`: returns the update -alpha * u
// (with beta1: of the momentum), shaped like `grad` (compute dtype), and moves the states of
// `view`, which are whole on every rank. No decay.
Tensor AdafactorLowRankStep(const AdafactorOptions& options, const SizedRate& alpha,
                            const ParamView& view, const Tensor& grad,
                            const StepDecision& decision);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAFACTOR_STEP_H_
