// SPDX-License-Identifier: Apache-2.0

// The members of OneBitOptimizer, for the sources that instantiate it:
//
//   template class OneBitOptimizer<OneBitAdamOptions>;
#ifndef APOGEE_OPTIM_ONEBIT_ONEBIT_DEFINITIONS_H_
#define APOGEE_OPTIM_ONEBIT_ONEBIT_DEFINITIONS_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/core/log.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/optim/onebit/error_feedback.h"
#include "apogee/optim/onebit/onebit.h"

namespace apogee::optim {

template <typename Options>
OneBitOptimizer<Options>::OneBitOptimizer(const char* name, std::vector<ParamGroup<Options>> groups)
    : TypedOptimizer<Options>(name, std::move(groups)),
      feedback_(std::make_unique<ErrorFeedback>()) {
  const Options& first = this->options(0);
  for (int g = 1; g < this->num_groups(); ++g) {
    const Options& o = this->options(g);
    APOGEE_CHECK(o.freeze_step == first.freeze_step && o.shared_scale == first.shared_scale &&
                     o.reset_errors == first.reset_errors && o.deepspeed == first.deepspeed,
                 "optimizer ", name, ": group ", g,
                 ": freeze_step, shared_scale, reset_errors and deepspeed must be those of group "
                 "0; all groups change phase together (non_freeze leaves a group out)");
  }
  own_ = this->AddListener(*this);
}

template <typename Options>
OneBitOptimizer<Options>::~OneBitOptimizer() = default;

template <typename Options>
void OneBitOptimizer<Options>::Loaded() {
  feedback_->ForgetMasks();
  AdoptRanks();
}

template <typename Options>
void OneBitOptimizer<Options>::BeforeStep() {
  nonfinite_.clear();
  this->ForEachView([this](ParamView& view, int group) {
    // A shard here is empty: its parameter is on another pipeline stage.
    if (feedback_->size() == 1 || view.is_shard()) return;
    view.set_partial_grad(TakesLocalGrad(group) ? feedback_->size() : 1);
  });
}

template <typename Options>
void OneBitOptimizer<Options>::SetMomentumMask(const std::string& parameter, const Tensor& mask) {
  const auto found = std::ranges::find(this->views(), parameter, &ParamView::name);
  APOGEE_CHECK(found != this->views().end(), "optimizer ", this->name(), ": \"", parameter,
               "\" is not one of its parameters");
  APOGEE_CHECK(mask.shape() == found->layout().logical_shape(), "momentum mask of \"", parameter,
               "\": shape ", mask.shape(), ", the parameter has ", found->layout().logical_shape());
  feedback_->SetMask(parameter, mask);
}

template <typename Options>
void OneBitOptimizer<Options>::SetRanks(const GradientRanks& ranks) {
  feedback_->SetRanks(ranks);
  this->set_rank(ranks.rank, ranks.num_ranks);
  if (ranks.group != nullptr) {
    this->set_stat_reducer(std::make_unique<AddendStatReducer>(ranks.group, ranks.statistics));
  }
  OkOrThrow(CheckRanks(this->group_state(0)));
  AdoptRanks();
}

template <typename Options>
comm::CompressionOptions OneBitOptimizer<Options>::compression() const {
  return {.shared_scale = this->options(0).shared_scale, .deepspeed = this->options(0).deepspeed};
}

template <typename Options>
double OneBitOptimizer<Options>::Number(const std::string& name) const {
  const auto found = this->group_state(0).find(name);
  return found == this->group_state(0).end() ? 0 : found->second.at(0);
}

template <typename Options>
void OneBitOptimizer<Options>::SetNumber(const std::string& name, double value) {
  for (int g = 0; g < this->num_groups(); ++g) this->mutable_group_state(g)[name] = {value};
}

template <typename Options>
void OneBitOptimizer<Options>::FinishStep() {
  SetNumber("global_step", static_cast<double>(global_step() + 1));
  for (int g = 0; g < this->num_groups(); ++g) this->mutable_group_state(g)["ranks"] = Ranks();
}

template <typename Options>
void OneBitOptimizer<Options>::Average(std::span<const FeedbackJob> jobs) {
  nonfinite_ = feedback_->Average(jobs, compression());
  if (feedback_->size() == 1) return;
  if (!nonfinite_.empty()) {
    this->DropUndeclaredStates();  // error states, if the compressed phase has not begun
    return;
  }
  this->ForEachView([this](ParamView& view, int group) {
    if (view.step() > 0 && MayTakeLocalGrad(group)) feedback_->MakeErrors(view, compression());
  });
  SetNumber("errors", 1);
}

template <typename Options>
void OneBitOptimizer<Options>::JoinErrors(std::span<const ActiveParam> params) {
  if (Number("errors") == 0) return;
  for (const ActiveParam& param : params) {
    if (MayTakeLocalGrad(param.group)) feedback_->MakeErrors(*param.view, compression());
  }
}

template <typename Options>
void OneBitOptimizer<Options>::ResetErrors() {
  for (ParamView& view : this->views()) ErrorFeedback::DropErrors(view);
  SetNumber("errors", 0);
}

template <typename Options>
bool OneBitOptimizer<Options>::HasErrors(const GroupState& state) const {
  const auto found = state.find("errors");
  return found != state.end() && found->second.at(0) == 1;
}

template <typename Options>
absl::Status OneBitOptimizer<Options>::PhaseStateSpecs(const ParamView& view, int group,
                                                       const GroupState& state,
                                                       std::vector<StateSpec>& specs) const {
  if (!HasErrors(state) || !MayTakeLocalGrad(group)) return absl::OkStatus();
  APOGEE_RETURN_IF_ERROR(CheckRanks(state));
  if (SameRanks(state)) feedback_->AppendSpecs(view, compression(), specs);
  return absl::OkStatus();
}

template <typename Options>
absl::Status OneBitOptimizer<Options>::CheckGroupState(const GroupState& state,
                                                       const OptionMap&) const {
  for (const auto& [name, values] : state) {
    if (values.size() != (name == "ranks" ? 2 : 1)) {
      return InvalidArgument(name, " has ", values.size(), " numbers");
    }
  }
  return absl::OkStatus();
}

template <typename Options>
std::vector<double> OneBitOptimizer<Options>::Ranks() const {
  return {static_cast<double>(feedback_->size()),
          static_cast<double>(feedback_->ranks().num_ranks)};
}

template <typename Options>
bool OneBitOptimizer<Options>::SameRanks(const GroupState& state) const {
  const auto found = state.find("ranks");
  return found != state.end() && found->second == Ranks();
}

template <typename Options>
absl::Status OneBitOptimizer<Options>::CheckRanks(const GroupState& state) const {
  if (!HasErrors(state) || SameRanks(state) || this->options(0).reset_errors) {
    return absl::OkStatus();
  }
  const auto saved = state.find("ranks");
  return InvalidArgument(
      "optimizer ", this->name(), ": the errors of its 1-bit messages were saved by ",
      saved == state.end() ? 0 : saved->second.at(1), " ranks, of which ",
      saved == state.end() ? 0 : saved->second.at(0), " average; this run has ",
      feedback_->ranks().num_ranks, " and ", feedback_->size(),
      ". Set its option reset_errors to let them start at zero, which costs a few steps of "
      "noise");
}

template <typename Options>
void OneBitOptimizer<Options>::AdoptRanks() {
  const GroupState& state = this->group_state(0);
  if (!HasErrors(state) || SameRanks(state)) return;
  if (feedback_->ranks().rank == 0) {
    LogWarning("optimizer ", this->name(),
               ": the number of ranks has changed; the errors of its "
               "1-bit messages start at zero");
  }
  ResetErrors();
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_ONEBIT_DEFINITIONS_H_
