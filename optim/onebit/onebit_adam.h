// SPDX-License-Identifier: Apache-2.0

// 1-bit Adam (Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
// Convergence Speed", ICML 2021, arXiv:2102.02888). For freeze_step updates (the warm-up) it is
// Adam without bias correction. Then the second moment stays as it is, and ranks average their
// momenta in one bit per element instead of their gradients.
//
//   optim::OneBitAdam optimizer(model.Parameters(), {.lr = 1e-3, .freeze_step = 2000});
//   DdpPlugin plugin(world.group());
//   Booster(plugin).boost(model, optimizer);      // then train as usual
//
// With t the number of updates, of all parameters together, and D = sqrt(v) + eps:
//   t <= freeze_step   m = b1 m + (1 - b1) g, with g the mean gradient over the ranks
//                      v = b2 v + (1 - b2) g^2
//   t >  freeze_step   m = 1-bit mean of b1 m + (1 - b1) g, with g this rank's own gradient
//                      v stays
//   both               w -= lr (m / D + weight_decay w)
// The warm-up is AdamW with correct_bias = false, bit for bit. Choose freeze_step as 15 to 25 % of
// all updates, after the learning rate has reached its peak. One rank compresses nothing.
//
// Mask: elements that had no gradient in the warm-up are not sent (v = 0, or below 1e-12 of its
// mean over the tensor, which is rounding errors). Their momentum stays 0, so their weights only
// decay. Rows of an embedding table that are first used after the warm-up therefore do not learn:
// put the table into a group with non_freeze, which stays in the warm-up. SetMomentumMask masks
// further elements.
//
// max_norm: after the freeze no rank knows the norm of the mean gradient. Gradients are clipped as
// if it were the root of the mean of the ranks' squared norms, which is never smaller. Every rank
// gets the same factor.
//
// States per element: exp_avg, exp_avg_sq (8 bytes). After the freeze also worker_error, 4 bytes,
// and server_error, 4 / n bytes on n ranks. A step also needs one f32 copy of the momentum.
//
// Sent per update and rank, with N elements per parameter: (n - 1) / n N / 4 bytes, and 8 (n - 1)
// bytes of scales per parameter, or once per update with shared_scale. An f32 all-reduce sends
// 8 (n - 1) / n N bytes.
//
// deepspeed: like DeepSpeed's OnebitAdam. The first update only counts, scales include padding, and
// there is no automatic mask.
#ifndef APOGEE_OPTIM_ONEBIT_ONEBIT_ADAM_H_
#define APOGEE_OPTIM_ONEBIT_ONEBIT_ADAM_H_

#include <array>

#include "apogee/optim/onebit/onebit.h"

namespace apogee::optim {

struct OneBitAdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;       // decoupled
  int64_t freeze_step = 100000;  // number of updates of the warm-up
  bool non_freeze = false;       // this group stays in the warm-up
  // One scale for the messages of all parameters instead of one each. Sends fewer bytes if there
  // are many small parameters; adds noise if the momenta of parameters differ in size.
  bool shared_scale = false;
  bool reset_errors = false;  // drop the errors of a checkpoint of another number of ranks
  bool deepspeed = false;
  bool amsgrad = false;  // must be false: a second moment that stays has no maximum

  static OneBitAdamOptions DeepSpeed() { return {.deepspeed = true}; }
  static std::vector<OptionField<OneBitAdamOptions>> Fields();
  void Check(OptionProblems& problems) const;
};
extern template class OneBitRule<OneBitAdamOptions>;

class OneBitAdamRule : public OneBitRule<OneBitAdamOptions> {
 public:
  static constexpr const char* kName = "onebit_adam";
  explicit OneBitAdamRule(std::vector<OneBitAdamOptions> groups)
      : OneBitRule(kName, std::move(groups)) {}

  bool TakesLocalGrad(int group) const override { return frozen() && MayTakeLocalGrad(group); }
  // In the compressed phase, a phase averages the momenta. It reserves no statistics.
  OptimizerTraits traits() override { return TraitsOf(frozen() ? 1 : 0, true); }
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override {
    specs = {{"exp_avg"}, {"exp_avg_sq"}};
    AppendErrors(of, specs);
  }

 private:
  void WarmUp(const RuleStep& step);

  // The averaged momenta, from ComputeStats to Update.
  std::map<const ParamView*, Tensor> momenta_;
};
using OneBitAdam = OneBitOptimizer<OneBitAdamRule>;
extern template class OptimizerOf<OneBitAdamRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_ONEBIT_ADAM_H_
