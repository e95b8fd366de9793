// SPDX-License-Identifier: Apache-2.0

// 0/1 Adam (Lu et al., "Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam",
// ICLR 2023, arXiv:2202.06009): Adam without bias correction that renews its second moment less and
// less often, averages gradients in one bit per element in between, and once the second moment is
// frozen lets ranks make several steps alone.
//
//   optim::ZeroOneAdam optimizer(model.Parameters(), {.lr = 1e-3, .freeze_step = 2000});
//   DdpPlugin plugin(world.group());
//   Booster(plugin).boost(model, optimizer);      // from then on the ordinary loop
//
// With t the number of updates, of all parameters together, and D = sqrt(v) + eps:
//   t <= freeze_step, k divides t   g the mean over the ranks;  m, v as in Adam. k starts as 1 and
//                                   doubles after every var_update_scaler of these steps
//   t <= freeze_step, otherwise     g the 1-bit mean;  m as in Adam, v stays
//       w -= lr (m / D + weight_decay w)
//   t > freeze_step                 each rank alone: m of its own gradient, w as above
//       every j-th step             the sum of lr m since the last time, averaged in one bit, takes
//                                   the place of the rank's own: in w, and, over the sum of lr, in
//                                   m. j starts as 1 and doubles, up to local_step_clipper, after
//                                   every local_step_scaler steps
// Weight decay acts on the weights alone, never on what is sent. The second moment (v = 0: masked),
// non_freeze groups and reset_errors as in onebit_adam.h. One rank compresses nothing.
//
// Between the averaging steps of the last phase ranks have different weights. SyncReplicas averages
// at once; saving does, and so does the first forward in evaluation mode, which all ranks must
// call. Saving thus changes what follows, unless it falls on an averaging step; a run that resumes
// goes on as the one that saved. max_norm is refused: there is no norm of a mean that nobody makes.
//
// States per element: exp_avg, exp_avg_sq (8 bytes); once something has been sent worker_error, 4
// bytes, and server_error, 4 / ranks; between averaging steps the weights at the last one and the
// drift since then, 8 bytes, which are never saved.
#ifndef APOGEE_OPTIM_ZERO_ONE_ADAM_H_
#define APOGEE_OPTIM_ZERO_ONE_ADAM_H_

#include <array>

#include "apogee/optim/onebit.h"

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
  bool amsgrad = false;    // refused

  std::vector<std::string> Problems() const;
  static std::vector<OptionField<ZeroOneAdamOptions>> Fields();
};
extern template class TypedOptimizer<ZeroOneAdamOptions>;
extern template class OneBitOptimizer<ZeroOneAdamOptions>;

class ZeroOneAdam : public OneBitOptimizer<ZeroOneAdamOptions> {
 public:
  ZeroOneAdam(std::vector<autograd::ParameterPtr> params, const ZeroOneAdamOptions& options)
      : ZeroOneAdam({{std::move(params), options}}) {}
  explicit ZeroOneAdam(std::vector<ParamGroup<ZeroOneAdamOptions>> groups);

  bool TakesLocalGrad(int group) const override {
    return MayTakeLocalGrad(group) && (frozen() || !RenewsSecondMoment());
  }
  bool MayTakeLocalGrad(int group) const override { return !options(group).non_freeze; }
  std::string ProblemOverRanks(double max_norm) const override;
  void SyncReplicas() override;
  // The steps from one averaging step of the last phase to the next.
  int64_t local_interval() const { return Count("local_interval"); }
  int64_t variance_interval() const { return Count("var_interval"); }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const ZeroOneAdamOptions& options) const override;
  // The gradients that ranks agree on in the first phase, and what steps alone keep. Nothing is
  // added up.
  int num_stat_phases() const override { return 1; }
  void ComputeStats(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
                    std::span<const StatBuffer> totals, StatBuffer& buffer) override;
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;
  void FinishStep() override;

 private:
  // What a rank has done alone since the last averaging step.
  struct Drift {
    Tensor anchor;  // the weights then, decayed since, the same on all ranks
    Tensor sum;     // of lr m, decayed with them
    double weight = 0;
    int group = 0;
  };

  // 1 before it is set.
  int64_t Count(const std::string& name) const;
  bool RenewsSecondMoment() const { return (global_step() + 1) % variance_interval() == 0; }
  void MakeDrift(ParamView& view, int group);
  void StepAlone(int group, std::span<const ActiveParam> params, const StepDecision& decision);
  // `counter` has gone up; after `limit` times `interval` doubles, up to `largest`.
  void Advance(const std::string& counter, const std::string& interval, int64_t limit,
               int64_t largest);
  void AverageDrifts();
  void Place(ParamView& view, const Drift& drift, double lr, double keep);

  std::map<const ParamView*, Tensor> grads_;  // from ComputeStats to Update
  std::map<ParamView*, Drift> drifts_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ZERO_ONE_ADAM_H_
