// SPDX-License-Identifier: Apache-2.0

// 1-bit LAMB (Li et al., "1-bit LAMB: Communication Efficient Large-Scale Large-Batch Training with
// LAMB's Convergence Speed", HiPC 2022, arXiv:2104.06069): LAMB without bias correction for
// freeze_step updates; then ranks average their momenta in one bit per element, the second moment
// stays as it is, and the trust ratio of each parameter is its average of the warm-up, adapted to
// what the averaged momenta tell of the gradients.
//
//   optim::OneBitLamb optimizer(model.Parameters(), {.lr = 2e-3, .freeze_step = 2000});
//   DdpPlugin plugin(world.group());
//   Booster(plugin).boost(model, optimizer);      // from then on the ordinary loop
//
// With D = sqrt(v) + eps and t the number of updates, of all parameters together:
//   t <= freeze_step   m, v as in Adam;  u = m / D + weight_decay w
//                      c = clamp(|w| / |u|, min_coeff, max_coeff), 1 where a norm is 0
//                      c_avg = coeff_beta c_avg + (1 - coeff_beta) c where c is not 1;  w -= lr c u
//   t >  freeze_step   m' = 1-bit mean of s (b1 m + (1 - b1) g), over s, g this rank's own
//                      g' = (m' - b1 m) / (1 - b1);  f = b2 f + (1 - b2) g'^2, f starting as v
//                      r = max D / (sqrt(f) + eps), with decay blended by min(1, |m' / D| / |u|)
//                      r within [factor_min, factor_max] and factor_threshold of the last one
//                      w -= lr c_avg r u
// s, of each parameter, is the mean over parameters of the root mean square of the momenta at the
// switch over its own: all messages then have elements of one size, so that one scale serves all of
// them (shared_scale, the default here). 1 for a momentum of zeros.
//
// Masks, clipping by max_norm, non_freeze groups (which stay in the warm-up) and reset_errors as in
// onebit_adam.h. Parameters that are first updated after the switch have c_avg = 1 until then.
// States per element as there, and after the switch exp_avg_sq_fresh; the numbers coeff_freeze,
// last_factor and scaling_coeff per parameter.
#ifndef APOGEE_OPTIM_ONEBIT_LAMB_H_
#define APOGEE_OPTIM_ONEBIT_LAMB_H_

#include <array>

#include "apogee/optim/onebit.h"

namespace apogee::optim {

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
  bool amsgrad = false;    // refused

  std::vector<std::string> Problems() const;
  static std::vector<OptionField<OneBitLambOptions>> Fields();
};
extern template class TypedOptimizer<OneBitLambOptions>;
extern template class OneBitOptimizer<OneBitLambOptions>;

class OneBitLamb : public OneBitOptimizer<OneBitLambOptions> {
 public:
  OneBitLamb(std::vector<autograd::ParameterPtr> params, const OneBitLambOptions& options)
      : OneBitLamb({{std::move(params), options}}) {}
  explicit OneBitLamb(std::vector<ParamGroup<OneBitLambOptions>> groups)
      : OneBitOptimizer("onebit_lamb", std::move(groups)) {}

  bool TakesLocalGrad(int group) const override { return frozen() && MayTakeLocalGrad(group); }
  bool MayTakeLocalGrad(int group) const override { return !options(group).non_freeze; }
  bool ClipsAddends() const override { return true; }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const OneBitLambOptions& options) const override;
  absl::Status PhaseStateSpecs(const ParamView& view, int group, const GroupState& state,
                               std::vector<StateSpec>& specs) const override;
  // At the first compressed step the sizes of the momenta. Then, and in the warm-up, the norms.
  int num_stat_phases() const override { return 2; }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  void ComputeStats(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
                    std::span<const StatBuffer> totals, StatBuffer& buffer) override;
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;
  void FinishStep() override;

 private:
  // The states of the compressed phase exist.
  bool switched() const { return Number("switched") == 1; }
  void Switch(std::span<const ActiveParam> params, const StatBuffer& squares);
  void AgreeOnMomenta(std::span<const ActiveParam> params, const StepDecision& decision);
  LambArgs WarmUpArgs(int group, DType dtype, DType stat_dtype, double grad_scale) const;
  OneBitLambArgs CompressedArgs(int group, DType dtype, DType stat_dtype) const;
  LambChunk WarmUpChunk(const ActiveParam& param, const StatBuffer& sums) const;
  OneBitLambChunk CompressedChunk(const ActiveParam& param, const StatBuffer& stats) const;
  // The averaged trust ratio with this update's factor, which becomes the last one.
  double AdaptedRatio(const ActiveParam& param, const StatBuffer& stats) const;

  std::map<const ParamView*, Tensor> momenta_;  // from ComputeStats to Update
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_LAMB_H_
