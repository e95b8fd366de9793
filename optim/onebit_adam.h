// SPDX-License-Identifier: Apache-2.0

// 1-bit Adam (Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
// Convergence Speed", ICML 2021, arXiv:2102.02888): Adam without bias correction for freeze_step
// updates; then the second moment stays as it is, and ranks average their momenta in one bit per
// element instead of their gradients.
//
//   optim::OneBitAdam optimizer(model.Parameters(), {.lr = 1e-3, .freeze_step = 2000});
//   DdpPlugin plugin(world.group());
//   Booster(plugin).boost(model, optimizer);      // from then on the ordinary loop
//
// With t the number of updates, of all parameters together, and D = sqrt(v) + eps:
//   t <= freeze_step   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2, g the mean over the ranks
//   t >  freeze_step   m = 1-bit mean of b1 m + (1 - b1) g, g this rank's own;  v stays
//   w -= lr (m / D + weight_decay w)
// The warm-up is AdamW with correct_bias = false, bit for bit. Freeze after 15 to 25 % of the
// updates, when the learning rate has reached its peak. One rank compresses nothing.
//
// Elements that had no gradient in the warm-up (v = 0, or below 1e-12 of its mean over the tensor:
// rounding errors) stay out of the messages: their momentum stays 0, and with it their weights, but
// for decay. Rows of a table that are first seen later thus do not learn: put that table into a
// group with non_freeze, which goes on as in the warm-up. SetMomentumMask leaves elements out by
// hand.
//
// max_norm: the norm of the mean gradient is not known after the freeze; gradients are then clipped
// by the root of the mean of the ranks' squared norms, the same on every rank and never smaller.
//
// States per element: exp_avg, exp_avg_sq (8 bytes); after the freeze worker_error, 4 bytes, and
// server_error, 4 / ranks; one f32 candidate of the momentum while a step lasts. Sent per update
// and rank: (n - 1) / n N / 4 + 8 (n - 1) bytes per parameter of N elements, or per update with
// shared_scale, an f32 all-reduce being 8 (n - 1) / n N.
//
// deepspeed: as DeepSpeed's OnebitAdam: the first update only counts, scales include padding, there
// is no automatic mask.
#ifndef APOGEE_OPTIM_ONEBIT_ADAM_H_
#define APOGEE_OPTIM_ONEBIT_ADAM_H_

#include <array>

#include "apogee/optim/onebit.h"

namespace apogee::optim {

struct OneBitAdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;       // decoupled
  int64_t freeze_step = 100000;  // updates of the warm-up
  bool non_freeze = false;       // this group stays in the warm-up
  // One scale for the messages of all parameters instead of one each: fewer bytes for models of
  // many small parameters, more noise for those of different sizes.
  bool shared_scale = false;
  bool reset_errors = false;  // errors of a checkpoint of other ranks may be dropped
  bool deepspeed = false;
  bool amsgrad = false;  // refused: there is no maximum of a second moment that does not move

  static OneBitAdamOptions DeepSpeed() { return {.deepspeed = true}; }
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<OneBitAdamOptions>> Fields();
};
extern template class TypedOptimizer<OneBitAdamOptions>;
extern template class OneBitOptimizer<OneBitAdamOptions>;

class OneBitAdam : public OneBitOptimizer<OneBitAdamOptions> {
 public:
  OneBitAdam(std::vector<autograd::ParameterPtr> params, const OneBitAdamOptions& options)
      : OneBitAdam({{std::move(params), options}}) {}
  explicit OneBitAdam(std::vector<ParamGroup<OneBitAdamOptions>> groups)
      : OneBitOptimizer("onebit_adam", std::move(groups)) {}

  bool TakesLocalGrad(int group) const override { return frozen() && MayTakeLocalGrad(group); }
  bool MayTakeLocalGrad(int group) const override { return !options(group).non_freeze; }
  bool ClipsAddends() const override { return true; }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const OneBitAdamOptions& options) const override;
  // In the compressed phase: the momenta that the ranks agree on. Nothing is added up.
  int num_stat_phases() const override { return frozen() ? 1 : 0; }
  void ComputeStats(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
                    std::span<const StatBuffer> totals, StatBuffer& buffer) override;
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;

 private:
  void WarmUp(int group, std::span<const ActiveParam> params, const StepDecision& decision);

  // From ComputeStats to Update, by parameter.
  std::map<const ParamView*, Tensor> momenta_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_ADAM_H_
