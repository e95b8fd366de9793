// SPDX-License-Identifier: Apache-2.0

// OneBitRule: the common base of 1-bit Adam, 0/1 Adam and 1-bit LAMB. It tracks the phase of
// training, which depends only on the number of updates, has the error feedback, and saves both.
// OneBitOptimizer is the optimizer of such a rule.
//
//   class OneBitAdamRule : public OneBitRule<OneBitAdamOptions> { ... };
//   using OneBitAdam = OneBitOptimizer<OneBitAdamRule>;
//
// Group states:
//   "global_step"  the number of updates so far, of all parameters together
//   "ranks"        how many ranks average, and how many ranks there are
//   "errors"       1 once there are error states
// Loading a checkpoint with error states of another number of ranks is an error. With reset_errors
// in this run's options, the errors start at zero instead, with a warning.
//
// `Options` must have: lr, freeze_step, shared_scale, reset_errors, deepspeed. Except for lr, they
// must be the same in all groups; for 0/1 Adam, so must its intervals. The constructor throws Error
// otherwise.
#ifndef APOGEE_OPTIM_ONEBIT_ONEBIT_H_
#define APOGEE_OPTIM_ONEBIT_ONEBIT_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/optim/core/local_gradients.h"
#include "apogee/optim/optimizer.h"

namespace apogee::comm {
struct CompressionOptions;
}

namespace apogee::optim {

class ErrorFeedback;
struct FeedbackJob;

template <typename O>
class OneBitRule : public RuleOf<O>, public LocalGradients {
 public:
  OneBitRule(const char* name, std::vector<O> groups);
  ~OneBitRule() override;

  absl::Status CheckGroupState(const GroupState& state, const OptionMap& options) const override;
  void On(RuleEvent event) override;

  std::string ProblemOverRanks(double /*max_norm*/) const override { return ""; }
  void SetRanks(const GradientRanks& ranks) override;
  bool MayTakeLocalGrad(int group) const override { return !this->options(group).non_freeze; }

  // See OneBitOptimizer.
  int64_t global_step() const { return static_cast<int64_t>(Number("global_step")); }
  void SetMomentumMask(const std::string& parameter, const Tensor& mask);

 protected:
  // Exact on the parts that tensor parallelism makes. Plugins that shard gradients refuse it.
  OptimizerTraits TraitsOf(int num_stat_phases, bool clips_addends);
  // True if the next update, number global_step() + 1, is after freeze_step.
  bool frozen() const { return global_step() >= this->options(0).freeze_step; }
  comm::CompressionOptions compression() const;
  ErrorFeedback& feedback() { return *feedback_; }
  // A number in the state of every group; 0 before it is set.
  double Number(const std::string& name) const;
  void SetNumber(const std::string& name, double value);

  // Averages the jobs. Also creates error states for all parameters that have been updated, so that
  // the states of a parameter depend only on the phase. Returns the name of a parameter whose value
  // is not finite, the same on every rank, and then changes nothing; else "".
  std::string Average(std::span<const FeedbackJob> jobs);
  // For steps that send nothing: creates error states for parameters that are updated for the first
  // time.
  void JoinErrors(std::span<const ActiveParam> params);
  // Drops all error states. For a phase whose messages are something else than before.
  void ResetErrors();
  // Appends the error states, if the group state says that there are any.
  void AppendErrors(const typename RuleOf<O>::Subject& of, std::vector<StateSpec>& specs) const;

 private:
  std::vector<double> Ranks() const;
  bool SameRanks(const GroupState& state) const;
  absl::Status CheckRanks(const GroupState& state) const;
  void AdoptRanks();

  std::unique_ptr<ErrorFeedback> feedback_;
};

template <typename Rule>
class OneBitOptimizer : public OptimizerOf<Rule> {
 public:
  using OptimizerOf<Rule>::OptimizerOf;

  // The number of updates so far.
  int64_t global_step() const { return this->rule().global_step(); }
  // Keeps elements of the momentum at 0 in compressed steps where `mask` is 0, as for elements that
  // never had a gradient. `mask` has dtype u8, f32 or f64 and the parameter's logical shape; throws
  // Error otherwise. Set the same mask on every rank.
  void SetMomentumMask(const std::string& parameter, const Tensor& mask) {
    this->rule().SetMomentumMask(parameter, mask);
  }
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_ONEBIT_H_
