// SPDX-License-Identifier: Apache-2.0

// LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR
// 2020). The defaults are the paper's; presets give the variants of public implementations.
//
//   optim::Lamb optimizer(model.Parameters(), {.lr = 2e-3, .weight_decay = 0.01});
//   optim::Lamb as_apex(model.Parameters(), optim::LambOptions::Apex());
//   optimizer.step();
//
// Per parameter, with t its own step count from 1, c1 = 1 - beta1^t and c2 = 1 - beta2^t (both 1
// without bias_correction):
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   u = m / c1 / (sqrt(v / c2) + eps) + weight_decay w
//   ratio = clamp(|w| / |u|, min_ratio, max_ratio), or 1 if |w| or |u| is 0
//   w -= lr ratio u
// With correct_lr, the bias correction moves from u into the learning rate:
//   u = m / (sqrt(v) + eps) + weight_decay w
//   w -= lr sqrt(c2) / c1 ratio u
// Norms are over the whole tensor, also when it is sharded; |w| is the norm of the master weights
// if the parameter has them.
//
// States per element: exp_avg, exp_avg_sq (8 bytes; 16 for f64).
//
//   preset       lr    eps   decay  difference from the paper
//   (defaults)   1e-3  1e-6  0
//   Apex()       1e-3  1e-6  0.01   gradients clipped to a global norm of 1; no ratio without decay
//   Colossal()   1e-3  1e-6  0      no bias correction; if you turn it on, it is in lr (correct_lr)
//   DeepSpeed()  1e-3  1e-8  0      correct_lr; ratio within [0.01, 10]
#ifndef APOGEE_OPTIM_ADAM_LAMB_H_
#define APOGEE_OPTIM_ADAM_LAMB_H_

#include <array>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct LambOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 0;
  bool bias_correction = true;
  bool correct_lr = false;     // the bias correction scales lr instead of u
  bool grad_averaging = true;  // false: m = beta1 m + g
  double min_ratio = 0;
  double max_ratio = 0;            // 0: no limit
  bool adam = false;               // every ratio is 1
  bool ratio_needs_decay = false;  // ratio 1 in groups without weight decay
  bool matrices_only = false;      // ratio 1 for vectors and scalars (biases, norms)
  // Divides gradients by max(1, norm / pre_clip_norm), where norm is the L2 norm over the gradients
  // of all parameters. 0: no clipping.
  double pre_clip_norm = 0;

  static LambOptions Apex();
  static LambOptions Colossal();
  static LambOptions DeepSpeed();
  static std::vector<OptionField<LambOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

class LambRule : public RuleOf<LambOptions> {
 public:
  static constexpr const char* kName = "lamb";
  explicit LambRule(std::vector<LambOptions> groups) : RuleOf(kName, std::move(groups)) {}

  // If a group has pre_clip_norm: first the squared gradient norms. Always: |w|^2 and |u|^2.
  OptimizerTraits traits() override {
    return {.shards = true, .decides_on_device = true, .num_stat_phases = clips() ? 2 : 1};
  }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject&, std::vector<StateSpec>& specs) const override {
    specs = {{"exp_avg"}, {"exp_avg_sq"}};
  }

 private:
  bool clips() const;
  // Queues the clipping of the groups with pre_clip_norm, from the totals of phase 0.
  void MakeGates(const RuleStep& step, const ContextPtr& context);
  // The factor for the group's gradients.
  GradFactor GradScale(int group, const StepDecision& decision) const;

  Tensor gates_;  // one per group, written by MakeGates
};
using Lamb = OptimizerOf<LambRule>;
extern template class OptimizerOf<LambRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAM_LAMB_H_
