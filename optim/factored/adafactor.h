// SPDX-License-Identifier: Apache-2.0

// Adafactor (Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost",
// ICML 2018) as in Hugging Face transformers; AdafactorOptions::Torch() is torch.optim's.
//
//   optim::Adafactor optimizer(model.Parameters(), {});            // computes its own rate
//   optim::Adafactor scheduled(model.Parameters(), {.lr = 1e-3, .scale_parameter = false,
//                                                   .relative_step = false});
//   optimizer.step();
//
// Per parameter, with t its own step count from 1; the last two dims are rows and columns, earlier
// dims are a batch of matrices:
//   rho   = relative_step ? min(warmup_init ? 1e-6 t : 1e-2, 1 / sqrt(t)) : lr
//   alpha = rho * (scale_parameter ? max(eps[1], rms(w)) : 1)
//   beta2 = 1 - t^decay_rate
//   R = beta2 R + (1 - beta2) (mean of g^2 over each row + eps[0])
//   C = beta2 C + (1 - beta2) (mean of g^2 over each column + eps[0])
//   u = g / sqrt(R / mean(R)) / sqrt(C)
//   u = alpha * u / max(1, rms(u) / clip_threshold)
//   beta1 > 0: m = beta1 m + (1 - beta1) u;  u = m
//   w -= weight_decay * alpha * w + u
// Vectors and scalars keep V per element instead of R and C:
//   V = beta2 V + (1 - beta2) (g^2 + eps[0]);  u = g / sqrt(V)
// The momentum averages alpha * u, as in the reference, so a change of lr reaches the weights only
// gradually.
//
// States of a matrix [H, W]: exp_avg_sq_row and exp_avg_sq_col, together 4 (H + W) bytes. Of a
// vector or scalar: exp_avg_sq, 4 bytes per element. With beta1 also exp_avg, 4 bytes per element.
// Twice that for f64.
//
// torch_style: rho = min(lr, 1 / sqrt(t)) and the decay is lr * weight_decay. eps[0] (0: the
// machine epsilon) is not added; it is a lower bound of mean(R) and of the root that divides g.
#ifndef APOGEE_OPTIM_FACTORED_ADAFACTOR_H_
#define APOGEE_OPTIM_FACTORED_ADAFACTOR_H_

#include <array>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

class AdafactorStep;

struct AdafactorOptions {
  // NaN: not given. relative_step requires that.
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
  static std::vector<OptionField<AdafactorOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

class AdafactorRule : public RuleOf<AdafactorOptions> {
 public:
  static constexpr const char* kName = "adafactor";
  explicit AdafactorRule(std::vector<AdafactorOptions> groups);
  ~AdafactorRule() override;

  OptimizerTraits traits() override {
    return {.shards = true, .decides_on_device = true, .num_stat_phases = 2};
  }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override;

 private:
  std::unique_ptr<AdafactorStep> step_;
};
using Adafactor = OptimizerOf<AdafactorRule>;
extern template class OptimizerOf<AdafactorRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FACTORED_ADAFACTOR_H_
