// SPDX-License-Identifier: Apache-2.0

// LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR
// 2020) in the form of the paper, with the variants of its public implementations as presets.
//
//   optim::Lamb optimizer(model.Parameters(), {.lr = 2e-3, .weight_decay = 0.01});
//   optim::Lamb as_apex(model.Parameters(), optim::LambOptions::Apex());
//   optimizer.step();
//
// Per parameter, t its own step count, c1 = 1 - beta1^t, c2 = 1 - beta2^t (1 without
// bias_correction):
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   u = m / c1 / (sqrt(v / c2) + eps) + weight_decay w
//   ratio = clamp(|w| / |u|, min_ratio, max_ratio), norms of the whole tensor; 1 where one of them
//   is 0 w -= lr ratio u
// correct_lr: u = m / (sqrt(v) + eps) + weight_decay w, and w -= lr sqrt(c2) / c1 ratio u.
// States per element: exp_avg, exp_avg_sq (8 bytes; 16 for f64). With master weights, |w| is
// theirs.
//
//   preset      lr    eps   decay  what differs
//   (paper)     1e-3  1e-6  0
//   Apex()      1e-3  1e-6  0.01   gradients clipped to a global norm of 1, no ratio where there is
//   no decay Colossal()  1e-3  1e-6  0      no bias correction; with it, correct_lr DeepSpeed()
//   1e-3  1e-8  0      correct_lr, ratio within [0.01, 10]
#ifndef APOGEE_OPTIM_LAMB_H_
#define APOGEE_OPTIM_LAMB_H_

#include <array>

#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

struct LambOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 0;
  bool bias_correction = true;
  bool correct_lr = false;     // the correction goes into the learning rate
  bool grad_averaging = true;  // false: m = beta1 m + g
  double min_ratio = 0;
  double max_ratio = 0;            // 0: no limit
  bool adam = false;               // no ratios at all
  bool ratio_needs_decay = false;  // a group without weight decay has no ratios
  bool matrices_only = false;      // vectors and scalars (biases, norms) have no ratio
  // Gradients are divided by max(1, norm / pre_clip_norm), the norm of all parameters'. 0: no
  // clipping.
  double pre_clip_norm = 0;

  static LambOptions Apex();
  static LambOptions Colossal();
  static LambOptions DeepSpeed();
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<LambOptions>> Fields();
};
extern template class TypedOptimizer<LambOptions>;

class Lamb : public TypedOptimizer<LambOptions> {
 public:
  Lamb(std::vector<autograd::ParameterPtr> params, const LambOptions& options)
      : Lamb({{std::move(params), options}}) {}
  explicit Lamb(std::vector<ParamGroup<LambOptions>> groups)
      : TypedOptimizer("lamb", std::move(groups)) {}

  bool SupportsShards() const override { return true; }
  bool DecidesOnDevice() const override { return !clips(); }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const LambOptions& options) const override;
  // The squares of the gradients, when a group clips by them; then those of weights and directions.
  int num_stat_phases() const override { return clips() ? 2 : 1; }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  void ComputeStats(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
                    std::span<const StatBuffer> totals, StatBuffer& buffer) override;
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;

 private:
  bool clips() const;
  // What gradients of the group are multiplied with. `totals` of the clipping phase, if there is
  // one.
  GradFactor GradScale(int group, const StepDecision& decision,
                       std::span<const StatBuffer> totals) const;
  enum class Pass { kSums, kUpdate };
  void RunPass(Pass pass, int group, std::span<const ActiveParam> params, size_t first,
               const GradFactor& grad_scale, const StatBuffer& sums);
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LAMB_H_
