// SPDX-License-Identifier: Apache-2.0

// 0/1 Adam (Lu et al., "Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam",
// ICLR 2023, arXiv:2202.06009): Adam without bias correction. It updates its second moment less and
// less often, and in between averages gradients in one bit per element. Once the second moment is
// frozen, each rank makes several steps alone between averages.
//
//   optim::ZeroOneAdam optimizer(model.Parameters(), {.lr = 1e-3, .freeze_step = 2000});
//   DdpPlugin plugin(world.group());
//   Booster(plugin).boost(model, optimizer);      // then train as usual
//
// With t the number of updates, of all parameters together, and D = sqrt(v) + eps, every update is
//   m = b1 m + (1 - b1) g
//   w -= lr (m / D + weight_decay w)
// where g and v depend on the phase:
//   t <= freeze_step, k divides t   g is the mean gradient over the ranks; v = b2 v + (1 - b2) g^2
//   t <= freeze_step, otherwise     g is the 1-bit mean of the gradients; v stays
//   t >  freeze_step                g is this rank's own gradient; v stays
// In the last phase ranks average after every update for which j divides t. Each rank has the sum
// of lr m since the last average. The ranks form the 1-bit mean of these sums. In w, the mean takes
// the place of the rank's own sum; divided by the sum of lr, it becomes m. Both intervals grow:
//   k   starts as 1, doubles after every var_update_scaler updates of v
//   j   starts as 1, doubles after every local_step_scaler updates, up to local_step_clipper
//
// Weight decay acts on the weights only, never on the messages. Masked elements (v = 0), non_freeze
// groups and reset_errors: see onebit_adam.h. One rank compresses nothing.
//
// After freeze_step, ranks have different weights between averages. SyncReplicas averages at once.
// Saving calls it, and so does the first forward in evaluation mode; so all ranks must make that
// forward. A save between two averages thus changes the further training; a resumed run continues
// like the run that saved. max_norm is refused, because no rank knows the norm of the mean
// gradient.
//
// States per element: exp_avg, exp_avg_sq (8 bytes). After the first message also worker_error, 4
// bytes, and server_error, 4 / n bytes on n ranks. Between averages also the weights at the last
// average and the drift since then, 8 bytes; these are never saved.
#ifndef APOGEE_OPTIM_ONEBIT_ZERO_ONE_ADAM_H_
#define APOGEE_OPTIM_ONEBIT_ZERO_ONE_ADAM_H_

#include <array>

#include "apogee/optim/onebit/onebit.h"

namespace apogee::optim {

struct ZeroOneAdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  int64_t freeze_step = 100000;  // DeepSpeed's var_freeze_step
  int64_t var_update_scaler = 16;
  int64_t local_step_scaler = 32768;
  int64_t local_step_clipper = 16;
  bool non_freeze = false;
  bool shared_scale = false;
  bool reset_errors = false;
  bool deepspeed = false;  // scales include padding, no automatic mask
  bool amsgrad = false;    // must be false

  static std::vector<OptionField<ZeroOneAdamOptions>> Fields();
  void Check(OptionProblems& problems) const;
};
extern template class OneBitRule<ZeroOneAdamOptions>;

class ZeroOneAdamRule : public OneBitRule<ZeroOneAdamOptions> {
 public:
  static constexpr const char* kName = "zero_one_adam";
  explicit ZeroOneAdamRule(std::vector<ZeroOneAdamOptions> groups);

  bool TakesLocalGrad(int group) const override {
    return MayTakeLocalGrad(group) && (frozen() || !RenewsSecondMoment());
  }
  std::string ProblemOverRanks(double max_norm) const override;
  void SyncReplicas() override;
  // See ZeroOneAdam.
  int64_t local_interval() const { return Count("local_interval"); }
  int64_t variance_interval() const { return Count("var_interval"); }

  // Up to freeze_step, the phase averages the gradients; later, it creates the drifts. It reserves
  // no statistics.
  OptimizerTraits traits() override { return TraitsOf(1, false); }
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;
  void On(RuleEvent event) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override {
    specs = {{"exp_avg"}, {"exp_avg_sq"}};
    AppendErrors(of, specs);
  }

 private:
  // The steps that this rank has made alone since the last average.
  struct Drift {
    Tensor anchor;  // the weights at the last average, decayed since; the same on all ranks
    Tensor sum;     // the sum of lr m, decayed like the weights
    double weight = 0;
    int group = 0;
  };

  // A number of the group state, or 1 before it is set.
  int64_t Count(const std::string& name) const;
  bool RenewsSecondMoment() const { return (global_step() + 1) % variance_interval() == 0; }
  void MakeDrift(ParamView& view, int group);
  void StepAlone(const RuleStep& step);
  // Increments `counter`. When it reaches `limit`, resets it and doubles `interval`, up to
  // `largest`.
  void Advance(const std::string& counter, const std::string& interval, int64_t limit,
               int64_t largest);
  void AverageDrifts();
  // After an update: averages if it is time, counts, changes the phase.
  void FinishStep();
  void Place(ParamView& view, const Drift& drift, double lr, double keep);

  std::map<const ParamView*, Tensor> grads_;  // averaged; from ComputeStats to Update
  std::map<ParamView*, Drift> drifts_;
};

class ZeroOneAdam : public OneBitOptimizer<ZeroOneAdamRule> {
 public:
  using OneBitOptimizer::OneBitOptimizer;

  // j and k above: the number of updates between averages (after freeze_step), and between updates
  // of v (up to freeze_step).
  int64_t local_interval() const { return rule().local_interval(); }
  int64_t variance_interval() const { return rule().variance_interval(); }
  void SyncReplicas() { rule().SyncReplicas(); }
};
extern template class OptimizerOf<ZeroOneAdamRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_ZERO_ONE_ADAM_H_
