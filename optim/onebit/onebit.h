// SPDX-License-Identifier: Apache-2.0

// OneBitOptimizer: the common base of 1-bit Adam, 0/1 Adam and 1-bit LAMB. It tracks the phase of
// training, which depends only on the number of updates, has the error feedback, and saves both.
//
//   class OneBitAdam : public OneBitOptimizer<OneBitAdamOptions> { ... };
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
#include "apogee/optim/typed_optimizer.h"

namespace apogee::comm {
struct CompressionOptions;
}

namespace apogee::optim {

class ErrorFeedback;
struct FeedbackJob;

template <typename Options>
class OneBitOptimizer : public TypedOptimizer<Options>,
                        public LocalGradientOptimizer,
                        protected StepListener {
 public:
  ~OneBitOptimizer() override;

  // Exact on the parts that tensor parallelism makes. Plugins that shard gradients refuse it.
  bool SupportsShards() const override { return true; }
  bool ReducesOwnGrad(const ParamView&, int group) const override { return TakesLocalGrad(group); }

  // The number of updates so far.
  int64_t global_step() const { return static_cast<int64_t>(Number("global_step")); }
  // Keeps elements of the momentum at 0 in compressed steps where `mask` is 0, as for elements that
  // never had a gradient. `mask` has dtype u8, f32 or f64 and the parameter's logical shape; throws
  // Error otherwise. Set the same mask on every rank.
  void SetMomentumMask(const std::string& parameter, const Tensor& mask);

  std::string ProblemOverRanks(double /*max_norm*/) const override { return ""; }
  void SetRanks(const GradientRanks& ranks) override;

 protected:
  OneBitOptimizer(const char* name, std::vector<ParamGroup<Options>> groups);

  // True if the next update, number global_step() + 1, is after freeze_step.
  bool frozen() const { return global_step() >= this->options(0).freeze_step; }
  comm::CompressionOptions compression() const;
  ErrorFeedback& feedback() { return *feedback_; }
  const ErrorFeedback& feedback() const { return *feedback_; }
  // A number in the state of every group; 0 before it is set.
  double Number(const std::string& name) const;
  void SetNumber(const std::string& name, double value);

  void BeforeStep() override;
  void Loaded() override;
  std::string NonFiniteAfterStats() const override { return nonfinite_; }
  void FinishStep() override;
  // Averages the jobs. Also creates error states for all parameters that have been updated, so that
  // the states of a parameter depend only on the phase.
  void Average(std::span<const FeedbackJob> jobs);
  // For steps that send nothing: creates error states for parameters that are updated for the first
  // time.
  void JoinErrors(std::span<const ActiveParam> params);
  // Drops all error states. For a phase whose messages are something else than before.
  void ResetErrors();
  bool HasErrors(const GroupState& state) const;

  absl::Status PhaseStateSpecs(const ParamView& view, int group, const GroupState& state,
                               std::vector<StateSpec>& specs) const override;
  absl::Status CheckGroupState(const GroupState& state, const OptionMap& options) const override;

 private:
  std::vector<double> Ranks() const;
  bool SameRanks(const GroupState& state) const;
  absl::Status CheckRanks(const GroupState& state) const;
  void AdoptRanks();

  std::unique_ptr<ErrorFeedback> feedback_;
  std::string nonfinite_;
  Subscription own_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_ONEBIT_H_
