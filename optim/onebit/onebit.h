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
#include <utility>
#include <vector>

#include "apogee/core/log.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/optim/onebit/error_feedback.h"
#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

template <typename Options>
class OneBitOptimizer : public TypedOptimizer<Options>, public LocalGradientOptimizer {
 public:
  // Exact on the parts that tensor parallelism makes. Plugins that shard gradients refuse it.
  bool SupportsShards() const override { return true; }
  bool ReducesOwnGrad(const ParamView&, int group) const override { return TakesLocalGrad(group); }

  // The number of updates so far.
  int64_t global_step() const { return static_cast<int64_t>(Number("global_step")); }
  // Keeps elements of the momentum at 0 in compressed steps where `mask` is 0, as for elements that
  // never had a gradient. `mask` has dtype u8, f32 or f64 and the parameter's logical shape; throws
  // Error otherwise. Set the same mask on every rank.
  void SetMomentumMask(const std::string& parameter, const Tensor& mask) {
    const auto found = std::ranges::find(this->views(), parameter, &ParamView::name);
    APOGEE_CHECK(found != this->views().end(), "optimizer ", this->name(), ": \"", parameter,
                 "\" is not one of its parameters");
    APOGEE_CHECK(mask.shape() == found->layout().logical_shape(), "momentum mask of \"", parameter,
                 "\": shape ", mask.shape(), ", the parameter has ",
                 found->layout().logical_shape());
    feedback_.SetMask(parameter, mask);
  }

  std::string ProblemOverRanks(double /*max_norm*/) const override { return ""; }
  void SetRanks(const GradientRanks& ranks) override {
    feedback_.SetRanks(ranks);
    this->set_rank(ranks.rank, ranks.num_ranks);
    if (ranks.group != nullptr) {
      this->set_stat_reducer(std::make_unique<AddendStatReducer>(ranks.group, ranks.statistics));
    }
    OkOrThrow(CheckRanks(this->group_state(0)));
    AdoptRanks();
  }

 protected:
  OneBitOptimizer(const char* name, std::vector<ParamGroup<Options>> groups)
      : TypedOptimizer<Options>(name, std::move(groups)) {
    const Options& first = this->options(0);
    for (int g = 1; g < this->num_groups(); ++g) {
      const Options& o = this->options(g);
      APOGEE_CHECK(o.freeze_step == first.freeze_step && o.shared_scale == first.shared_scale &&
                       o.reset_errors == first.reset_errors && o.deepspeed == first.deepspeed,
                   "optimizer ", name, ": group ", g,
                   ": freeze_step, shared_scale, reset_errors and deepspeed must be those of group "
                   "0; all groups change phase together (non_freeze leaves a group out)");
    }
    this->AddLoadHook([this](Optimizer&) {
      feedback_.ForgetMasks();
      AdoptRanks();
    });
    this->AddPreStepHook([this](Optimizer& self) {
      nonfinite_.clear();
      self.ForEachView([this](ParamView& view, int group) {
        // A shard here is empty: its parameter is on another pipeline stage.
        if (feedback_.size() == 1 || view.is_shard()) return;
        view.set_partial_grad(TakesLocalGrad(group) ? feedback_.size() : 1);
      });
    });
  }

  // True if the next update, number global_step() + 1, is after freeze_step.
  bool frozen() const { return global_step() >= this->options(0).freeze_step; }
  comm::CompressionOptions compression() const {
    return {.shared_scale = this->options(0).shared_scale, .deepspeed = this->options(0).deepspeed};
  }
  ErrorFeedback& feedback() { return feedback_; }
  const ErrorFeedback& feedback() const { return feedback_; }
  // A number in the state of every group; 0 before it is set.
  double Number(const std::string& name) const {
    const auto found = this->group_state(0).find(name);
    return found == this->group_state(0).end() ? 0 : found->second.at(0);
  }
  void SetNumber(const std::string& name, double value) {
    for (int g = 0; g < this->num_groups(); ++g) this->mutable_group_state(g)[name] = {value};
  }

  std::string NonFiniteAfterStats() const override { return nonfinite_; }
  void FinishStep() override {
    SetNumber("global_step", static_cast<double>(global_step() + 1));
    for (int g = 0; g < this->num_groups(); ++g) this->mutable_group_state(g)["ranks"] = Ranks();
  }
  // Averages the jobs. Also creates error states for all parameters that have been updated, so that
  // the states of a parameter depend only on the phase.
  void Average(std::span<const ErrorFeedback::Job> jobs) {
    nonfinite_ = feedback_.Average(jobs, compression());
    if (feedback_.size() == 1) return;
    if (!nonfinite_.empty()) {
      this->DropUndeclaredStates();  // error states, if the compressed phase has not begun
      return;
    }
    this->ForEachView([this](ParamView& view, int group) {
      if (view.step() > 0 && MayTakeLocalGrad(group)) feedback_.MakeErrors(view, compression());
    });
    SetNumber("errors", 1);
  }
  // For steps that send nothing: creates error states for parameters that are updated for the first
  // time.
  void JoinErrors(std::span<const ActiveParam> params) {
    if (Number("errors") == 0) return;
    for (const ActiveParam& param : params) {
      if (MayTakeLocalGrad(param.group)) feedback_.MakeErrors(*param.view, compression());
    }
  }
  // Drops all error states. For a phase whose messages are something else than before.
  void ResetErrors() {
    for (ParamView& view : this->views()) ErrorFeedback::DropErrors(view);
    SetNumber("errors", 0);
  }
  bool HasErrors(const GroupState& state) const {
    const auto found = state.find("errors");
    return found != state.end() && found->second.at(0) == 1;
  }

  absl::Status PhaseStateSpecs(const ParamView& view, int group, const GroupState& state,
                               std::vector<StateSpec>& specs) const override {
    if (!HasErrors(state) || !MayTakeLocalGrad(group)) return absl::OkStatus();
    APOGEE_RETURN_IF_ERROR(CheckRanks(state));
    if (SameRanks(state)) feedback_.AppendSpecs(view, compression(), specs);
    return absl::OkStatus();
  }
  absl::Status CheckGroupState(const GroupState& state, const OptionMap&) const override {
    for (const auto& [name, values] : state) {
      if (values.size() != (name == "ranks" ? 2 : 1)) {
        return InvalidArgument(name, " has ", values.size(), " numbers");
      }
    }
    return absl::OkStatus();
  }

 private:
  std::vector<double> Ranks() const {
    return {static_cast<double>(feedback_.size()),
            static_cast<double>(feedback_.ranks().num_ranks)};
  }
  bool SameRanks(const GroupState& state) const {
    const auto found = state.find("ranks");
    return found != state.end() && found->second == Ranks();
  }
  absl::Status CheckRanks(const GroupState& state) const {
    if (!HasErrors(state) || SameRanks(state) || this->options(0).reset_errors) {
      return absl::OkStatus();
    }
    const auto saved = state.find("ranks");
    return InvalidArgument(
        "optimizer ", this->name(), ": the errors of its 1-bit messages were saved by ",
        saved == state.end() ? 0 : saved->second.at(1), " ranks, of which ",
        saved == state.end() ? 0 : saved->second.at(0), " average; this run has ",
        feedback_.ranks().num_ranks, " and ", feedback_.size(),
        ". Set its option reset_errors to let them start at zero, which costs a few steps of "
        "noise");
  }
  void AdoptRanks() {
    const GroupState& state = this->group_state(0);
    if (!HasErrors(state) || SameRanks(state)) return;
    if (feedback_.ranks().rank == 0) {
      LogWarning("optimizer ", this->name(),
                 ": the number of ranks has changed; the errors of its "
                 "1-bit messages start at zero");
    }
    ResetErrors();
  }

  ErrorFeedback feedback_;
  std::string nonfinite_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_ONEBIT_H_
