// SPDX-License-Identifier: Apache-2.0

// Schedule-free AdamW and SGD (Defazio et al., "The Road Less Scheduled", NeurIPS 2024): the rate
// stays constant after a warm-up, and an average of the weights takes the place of its decay.
//
//   optim::ScheduleFreeAdamW optimizer(model.Parameters(), {.lr = 2.5e-3, .warmup_steps = 200});
//   ...                                              // train as with AdamW
//   const auto averages = booster.evaluation_weights();
//   Validate(boosted.model);                         // reads the averages x
//
// Three sequences: z takes the steps, x is the average of z, and gradients are taken at y between
// them. The parameters hold y. With t the group's step from 0, beta = betas[0] or momentum:
//   lr_t   = lr min(1, (t + 1) / warmup_steps);   lr_max = max(lr_max, lr_t)
//   weight = (t + 1)^r lr_max^weight_lr_power;    c = weight / (sum of all weights so far)
//   u      = grad + weight_decay y                                                         (SGD)
//   v      = beta2 v + (1 - beta2) grad^2                                                  (AdamW)
//   u      = grad / (sqrt(v / (1 - beta2^(t+1))) + eps) + weight_decay y                   (AdamW)
//   y      = y + c (z - y) - lr_t (1 - beta (1 - c)) u
//   z      = z - lr_t u
//   x      = y + (1 - 1 / beta) (z - y)
// inner_momentum: grad in the numerator of u is an average with this decay rate, corrected for its
// start at zero. z begins as the parameter's value at its first update.
//
// x is never stored while training goes on. optim::EvaluationWeights and Booster's
// evaluation_weights put it into the model as long as their handle lives; save_model always writes
// x. A training checkpoint has y and z, so a resumed run continues with the same bits.
//
// t, lr_max and the sum of weights belong to the group, as in the authors' code. They advance with
// every step that updates something, also for a parameter whose gradient is absent. A parameter
// whose first gradient comes late is corrected with the group's t. Do not use a decaying schedule
// of rates as well; a change of lr is taken into account by lr_max.
//
// States per element: z, exp_avg_sq (8 bytes; SGD 4), with inner_momentum also exp_avg. Groups: k,
// lr_max, weight_sum, scheduled_lr. Defaults are those of the authors' code.
#ifndef APOGEE_OPTIM_AVERAGED_SCHEDULE_FREE_H_
#define APOGEE_OPTIM_AVERAGED_SCHEDULE_FREE_H_

#include <array>
#include <vector>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct ScheduleFreeAdamWOptions {
  double lr = 2.5e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  int64_t warmup_steps = 0;
  double r = 0;                // the weight of step t grows with t^r
  double weight_lr_power = 2;  // and with this power of the largest rate
  double inner_momentum = 0;

  static constexpr const char* kName = "schedule_free_adamw";
  double beta() const { return betas[0]; }
  static std::vector<OptionField<ScheduleFreeAdamWOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

struct ScheduleFreeSgdOptions {
  double lr = 1;
  double momentum = 0.9;  // beta
  double weight_decay = 0;
  int64_t warmup_steps = 0;
  double r = 0;
  double weight_lr_power = 2;

  static constexpr const char* kName = "schedule_free_sgd";
  double beta() const { return momentum; }
  static std::vector<OptionField<ScheduleFreeSgdOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

struct ScheduleFreeSettings;  // schedule_free_element.h

// O is one of the options above.
template <typename O>
class ScheduleFreeRule : public RuleOf<O> {
 public:
  static constexpr const char* kName = O::kName;
  explicit ScheduleFreeRule(std::vector<O> groups) : RuleOf<O>(kName, std::move(groups)) {}

  OptimizerTraits traits() override {
    return {.shards = true, .decides_on_device = true, .averages_weights = true};
  }
  absl::Status CheckGroupState(const GroupState& state, const OptionMap& options) const override;
  void Update(const RuleStep& step) override;
  void On(RuleEvent event) override;
  Tensor Averaged(ParamView& view, int group) const override;

 protected:
  void States(const typename RuleOf<O>::Subject& of, std::vector<StateSpec>& specs) const override;

 private:
  // The next step of a group.
  struct GroupStep {
    double k, lr, lr_max, weight, weight_sum;
  };
  GroupStep Next(int group) const;
  // Of all its parameters, but for `first`.
  ScheduleFreeSettings Settings(int group) const;

  std::vector<GroupState> before_;  // of a step that a GPU may yet have skipped
};

using ScheduleFreeAdamW = OptimizerOf<ScheduleFreeRule<ScheduleFreeAdamWOptions>>;
using ScheduleFreeSgd = OptimizerOf<ScheduleFreeRule<ScheduleFreeSgdOptions>>;
extern template class OptimizerOf<ScheduleFreeRule<ScheduleFreeAdamWOptions>>;
extern template class OptimizerOf<ScheduleFreeRule<ScheduleFreeSgdOptions>>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_AVERAGED_SCHEDULE_FREE_H_
