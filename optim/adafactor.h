// SPDX-License-Identifier: Apache-2.0

// Adafactor (Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost",
// ICML 2018), with the semantics of Hugging Face transformers; AdafactorOptions::Torch() has
// torch.optim's.
//
//   optim::Adafactor optimizer(model.Parameters(), {});                            // its own rate
//   optim::Adafactor scheduled(model.Parameters(), {.lr = 1e-3, .scale_parameter = false,
//                                                   .relative_step = false});
//   optimizer.step();
//
// Per parameter, t its own step count, means over the last two dimensions (others are a batch):
//   rho = relative_step ? min(warmup_init ? 1e-6 t : 1e-2, 1 / sqrt(t)) : lr
//   alpha = rho * (scale_parameter ? max(eps[1], rms(w)) : 1);  beta2 = 1 - t^decay_rate
//   R = beta2 R + (1 - beta2) (mean of g^2 over the row + eps[0]);  C alike over the column
//   u = g / sqrt(R / mean(R)) / sqrt(C);  u = alpha * u / max(1, rms(u) / clip_threshold)
//   beta1 > 0: m = beta1 m + (1 - beta1) u, u = m
//   w -= weight_decay * alpha * w + u
// Vectors and scalars keep V = beta2 V + (1 - beta2) (g^2 + eps[0]) per element, u = g / sqrt(V).
// States of a matrix [H, W]: exp_avg_sq_row and exp_avg_sq_col, 4 (H + W) bytes in all (f64:
// twice); else exp_avg_sq, 4 bytes per element; exp_avg, 4 more per element, with beta1. The
// momentum averages alpha * u, as the reference does: a change of lr reaches the weights late.
//
// torch_style: rho = min(lr, 1 / sqrt(t)); decay by lr * weight_decay; eps[0] (0: the machine
// epsilon) is a floor under mean(R) and under the root that divides g instead of a summand.
#ifndef APOGEE_OPTIM_ADAFACTOR_H_
#define APOGEE_OPTIM_ADAFACTOR_H_

#include "apogee/optim/adafactor_step.h"

namespace apogee::optim {

class Adafactor : public RelativeStepOptimizer<AdafactorOptions> {
 public:
  Adafactor(std::vector<autograd::ParameterPtr> params, const AdafactorOptions& options)
      : Adafactor({{std::move(params), options}}) {}
  explicit Adafactor(std::vector<ParamGroup<AdafactorOptions>> groups)
      : RelativeStepOptimizer("adafactor", std::move(groups)) {}

  bool SupportsShards() const override { return true; }
  bool DecidesOnDevice() const override { return true; }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const AdafactorOptions& options) const override {
    return AdafactorStep::States(view, options);
  }
  int num_stat_phases() const override { return AdafactorStep::kNumPhases; }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override {
    step_.Declare(phase, params, buffer);
  }
  void ComputeStats(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
                    std::span<const StatBuffer> totals, StatBuffer& buffer) override {
    step_.Compute(phase, params, decision, totals, buffer);
  }
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override {
    step_.Update(group, params, decision, totals);
  }

 private:
  AdafactorStep step_{[this](int group) { return options(group); }};
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAFACTOR_H_
