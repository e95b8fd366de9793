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

#include <array>
#include <limits>

#include "apogee/optim/factored.h"
#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

struct AdafactorOptions {
  // NaN: not given, as relative_step wants it.
  double lr = std::numeric_limits<double>::quiet_NaN();
  std::array<double, 2> eps = {1e-30, 1e-3};
  double clip_threshold = 1;
  double decay_rate = -0.8;
  double beta1 = 0;  // 0: no momentum
  double weight_decay = 0;
  bool scale_parameter = true;
  bool relative_step = true;
  bool warmup_init = false;  // needs relative_step
  bool torch_style = false;  // needs lr; no momentum

  // The defaults of torch.optim.Adafactor.
  static AdafactorOptions Torch();
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<AdafactorOptions>> Fields();
};

class Adafactor : public TypedOptimizer<AdafactorOptions> {
 public:
  Adafactor(std::vector<autograd::ParameterPtr> params, const AdafactorOptions& options)
      : Adafactor({{std::move(params), options}}) {}
  explicit Adafactor(std::vector<ParamGroup<AdafactorOptions>> groups)
      : TypedOptimizer("adafactor", std::move(groups)) {}

  // 0 under relative_step, which computes the rate; a schedule that sets another throws Error.
  double lr(int group) const override;
  void set_lr(int group, double lr) override;

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const AdafactorOptions& options) const override;
  int num_stat_phases() const override { return 2; }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  void ComputeStats(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
                    std::span<const StatBuffer> totals, StatBuffer& buffer) override;
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;

 private:
  // The factors from the totals of phase 0, for update `ahead` steps after the count; `store` as in
  // FactorArgs.
  void ComputeFactors(int group, std::span<const ActiveParam> params, size_t first, int64_t ahead,
                      bool store, const StatBuffer& totals);

  FactoredWork work_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAFACTOR_H_
