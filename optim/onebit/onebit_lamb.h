// SPDX-License-Identifier: Apache-2.0

// 1-bit LAMB (Li et al., "1-bit LAMB: Communication Efficient Large-Scale Large-Batch Training with
// LAMB's Convergence Speed", HiPC 2022, arXiv:2104.06069). For freeze_step updates (the warm-up) it
// is LAMB without bias correction. Then ranks average their momenta in one bit per element and the
// second moment stays as it is. Each parameter then uses its average trust ratio of the warm-up,
// adapted to the gradients that the averaged momenta imply.
//
//   optim::OneBitLamb optimizer(model.Parameters(), {.lr = 2e-3, .freeze_step = 2000});
//   DdpPlugin plugin(world.group());
//   Booster(plugin).boost(model, optimizer);      // then train as usual
//
// With t the number of updates, of all parameters together, and D = sqrt(v) + eps:
//   t <= freeze_step, with g the mean gradient over the ranks
//     m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//     u = m / D + weight_decay w
//     c = clamp(|w| / |u|, min_coeff, max_coeff), or 1 if |w| or |u| is 0
//     c_avg = coeff_beta c_avg + (1 - coeff_beta) c, if c is not 1
//     w -= lr c u
//   t > freeze_step, with g this rank's own gradient
//     m' = (1-bit mean of s (b1 m + (1 - b1) g)) / s
//     g' = (m' - b1 m) / (1 - b1)                   the gradient that m' implies
//     f = b2 f + (1 - b2) g'^2                      starts as v
//     u = m' / D + weight_decay w
//     r = max of D / (sqrt(f) + eps) over the elements
//     with weight_decay: r = p r + (1 - p), p = min(1, |m' / D| / |u|)
//     r is clamped to [factor_min, factor_max], then to 1 +- factor_threshold times the last r
//     w -= lr c_avg r u;  m = m'
// The scale s of a parameter is set at the switch: the mean over parameters of the rms of their
// momenta, divided by the rms of its own (1 for a momentum of zeros). The messages of all
// parameters then have elements of the same size, so that one scale serves all of them
// (shared_scale, the default here).
//
// Masks, max_norm, non_freeze groups (which stay in the warm-up) and reset_errors: see
// onebit_adam.h. Parameters that are first updated after the switch have c_avg = 1.
//
// States per element as in onebit_adam.h, and after the switch exp_avg_sq_fresh (f). States per
// parameter: coeff_freeze (c_avg), last_factor (r), scaling_coeff (s).
#ifndef APOGEE_OPTIM_ONEBIT_ONEBIT_LAMB_H_
#define APOGEE_OPTIM_ONEBIT_ONEBIT_LAMB_H_

#include <array>

#include "apogee/optim/onebit/onebit.h"

namespace apogee::optim {

struct LambArgs;
struct LambChunk;
struct OneBitLambArgs;
struct OneBitLambChunk;

struct OneBitLambOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  int64_t freeze_step = 100000;
  double max_coeff = 10;
  double min_coeff = 0.01;
  double coeff_beta = 0.9;
  double factor_max = 4;
  double factor_min = 0.5;
  double factor_threshold = 0.1;
  bool non_freeze = false;
  bool shared_scale = true;
  bool reset_errors = false;
  bool deepspeed = false;  // scales include padding, no automatic mask
  bool amsgrad = false;    // must be false

  static std::vector<OptionField<OneBitLambOptions>> Fields();
  void Check(OptionProblems& problems) const;
};
extern template class OneBitRule<OneBitLambOptions>;

class OneBitLambRule : public OneBitRule<OneBitLambOptions> {
 public:
  static constexpr const char* kName = "onebit_lamb";
  explicit OneBitLambRule(std::vector<OneBitLambOptions> groups)
      : OneBitRule(kName, std::move(groups)) {}

  bool TakesLocalGrad(int group) const override { return frozen() && MayTakeLocalGrad(group); }
  // The first phase has numbers only in the first compressed step: the squared norms of the
  // momenta. The second has the norms of every step.
  OptimizerTraits traits() override { return TraitsOf(2, true); }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;
  void On(RuleEvent event) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override;

 private:
  // Whether the states of the compressed phase exist.
  bool switched() const { return Number("switched") == 1; }
  void Switch(std::span<const ActiveParam> params, const StatBuffer& squares);
  // Returns what Average() does.
  std::string AgreeOnMomenta(const RuleStep& step);
  // Without dtype and chunks.
  LambArgs WarmUpArgs(int group, DType stat_dtype, const GradFactor& grad_scale) const;
  OneBitLambArgs CompressedArgs(int group, DType stat_dtype) const;
  LambChunk WarmUpChunk(const ActiveParam& param, const StatBuffer& sums) const;
  OneBitLambChunk CompressedChunk(const ActiveParam& param, const StatBuffer& stats) const;
  // c_avg times this update's factor r. Stores r as the last factor.
  double AdaptedRatio(const ActiveParam& param, const StatBuffer& stats) const;

  std::map<const ParamView*, Tensor> momenta_;  // averaged; from ComputeStats to Update
};
using OneBitLamb = OneBitOptimizer<OneBitLambRule>;
extern template class OptimizerOf<OneBitLambRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_ONEBIT_LAMB_H_
