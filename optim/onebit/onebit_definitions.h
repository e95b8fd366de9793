// SPDX-License-Identifier: Apache-2.0

// The members of OneBitRule, for the sources that instantiate it:
//
//   template class OneBitRule<OneBitAdamOptions>;
#ifndef APOGEE_OPTIM_ONEBIT_ONEBIT_DEFINITIONS_H_
#define APOGEE_OPTIM_ONEBIT_ONEBIT_DEFINITIONS_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/core/log.h"
#include "apogee/optim/onebit/error_feedback.h"
#include "apogee/optim/onebit/onebit.h"

namespace apogee::optim {

inline bool HasErrors(const GroupState& state) {
  const auto found = state.find("errors");
  return found != state.end() && found->second.at(0) == 1;
}

template <typename O>
OneBitRule<O>::OneBitRule(const char* name, std::vector<O> groups)
    : RuleOf<O>(name, std::move(groups)), feedback_(std::make_unique<ErrorFeedback>()) {
  const O& first = this->options(0);
  for (int g = 1; g < this->num_groups(); ++g) {
    const O& o = this->options(g);
    APOGEE_CHECK(o.freeze_step == first.freeze_step && o.shared_scale == first.shared_scale &&
                     o.reset_errors == first.reset_errors && o.deepspeed == first.deepspeed,
                 "optimizer ", name, ": group ", g,
                 ": freeze_step, shared_scale, reset_errors and deepspeed must be those of group "
                 "0; all groups change phase together (non_freeze leaves a group out)");
  }
}

template <typename O>
OneBitRule<O>::~OneBitRule() = default;

template <typename O>
OptimizerTraits OneBitRule<O>::TraitsOf(int num_stat_phases, bool clips_addends) {
  return {.shards = true,
          .clips_addends = clips_addends,
          .num_stat_phases = num_stat_phases,
          .local_gradients = this,
          .of_param = [this](const ParamView&, int group) {
            return ParamTraits{.reduces_own_grad = TakesLocalGrad(group)};
          }};
}

template <typename O>
void OneBitRule<O>::On(RuleEvent event) {
  if (event == RuleEvent::kBeforeStep && feedback_->size() > 1) {
    this->store().ForEachView([this](ParamView& view, int group) {
      // A shard here is empty: its parameter is on another pipeline stage.
      if (!view.is_shard()) view.set_partial_grad(TakesLocalGrad(group) ? feedback_->size() : 1);
    });
  } else if (event == RuleEvent::kUpdated) {
    SetNumber("global_step", static_cast<double>(global_step() + 1));
    for (int g = 0; g < this->num_groups(); ++g) {
      this->store().mutable_group_state(g)["ranks"] = Ranks();
    }
  } else if (event == RuleEvent::kLoaded) {
    feedback_->ForgetMasks();
    AdoptRanks();
  }
}

template <typename O>
void OneBitRule<O>::SetMomentumMask(const std::string& parameter, const Tensor& mask) {
  const std::span<ParamView> views = this->store().views();
  const auto found = std::ranges::find(views, parameter, &ParamView::name);
  APOGEE_CHECK(found != views.end(), "optimizer ", this->store().optimizer(), ": \"", parameter,
               "\" is not one of its parameters");
  APOGEE_CHECK(mask.shape() == found->layout().logical_shape(), "momentum mask of \"", parameter,
               "\": shape ", mask.shape(), ", the parameter has ", found->layout().logical_shape());
  feedback_->SetMask(parameter, mask);
}

template <typename O>
void OneBitRule<O>::SetRanks(const GradientRanks& ranks) {
  feedback_->SetRanks(ranks);
  const absl::Status fits = CheckRanks(this->store().group_state(0));
  APOGEE_CHECK(fits.ok(), "optimizer ", this->store().optimizer(), ": ", Message(fits));
  AdoptRanks();
}

template <typename O>
comm::CompressionOptions OneBitRule<O>::compression() const {
  return {.shared_scale = this->options(0).shared_scale, .deepspeed = this->options(0).deepspeed};
}

template <typename O>
double OneBitRule<O>::Number(const std::string& name) const {
  const GroupState& state = this->store().group_state(0);
  const auto found = state.find(name);
  return found == state.end() ? 0 : found->second.at(0);
}

template <typename O>
void OneBitRule<O>::SetNumber(const std::string& name, double value) {
  for (int g = 0; g < this->num_groups(); ++g) {
    this->store().mutable_group_state(g)[name] = {value};
  }
}

template <typename O>
std::string OneBitRule<O>::Average(std::span<const FeedbackJob> jobs) {
  std::string bad = feedback_->Average(jobs, compression());
  if (feedback_->size() == 1) return bad;
  if (!bad.empty()) {
    this->store().DropUndeclared();  // error states, if the compressed phase has not begun
    return bad;
  }
  bool any = false;
  this->store().ForEachView([&](ParamView& view, int group) {
    if (!MayTakeLocalGrad(group)) return;
    any = true;
    if (view.step() > 0) feedback_->MakeErrors(view, compression());
  });
  if (any) SetNumber("errors", 1);
  return "";
}

template <typename O>
void OneBitRule<O>::JoinErrors(std::span<const ActiveParam> params) {
  if (Number("errors") == 0) return;
  for (const ActiveParam& param : params) {
    if (MayTakeLocalGrad(param.group)) feedback_->MakeErrors(*param.view, compression());
  }
}

template <typename O>
void OneBitRule<O>::ResetErrors() {
  for (ParamView& view : this->store().views()) ErrorFeedback::DropErrors(view);
  SetNumber("errors", 0);
}

template <typename O>
void OneBitRule<O>::AppendErrors(const typename RuleOf<O>::Subject& of,
                                 std::vector<StateSpec>& specs) const {
  if (!HasErrors(of.group_state) || of.options.non_freeze || !SameRanks(of.group_state)) return;
  feedback_->AppendSpecs(of.view, compression(), specs);
}

template <typename O>
absl::Status OneBitRule<O>::CheckGroupState(const GroupState& state, const OptionMap&) const {
  for (const auto& [name, values] : state) {
    if (values.size() != (name == "ranks" ? 2 : 1)) {
      return InvalidArgument(name, " has ", values.size(), " numbers");
    }
  }
  return CheckRanks(state);
}

template <typename O>
std::vector<double> OneBitRule<O>::Ranks() const {
  return {static_cast<double>(feedback_->size()),
          static_cast<double>(feedback_->ranks().num_ranks)};
}

template <typename O>
bool OneBitRule<O>::SameRanks(const GroupState& state) const {
  const auto found = state.find("ranks");
  return found != state.end() && found->second == Ranks();
}

template <typename O>
absl::Status OneBitRule<O>::CheckRanks(const GroupState& state) const {
  if (!HasErrors(state) || SameRanks(state) || this->options(0).reset_errors) {
    return absl::OkStatus();
  }
  const auto saved = state.find("ranks");
  return InvalidArgument(
      "the errors of its 1-bit messages were saved by ",
      saved == state.end() ? 0 : saved->second.at(1), " ranks, of which ",
      saved == state.end() ? 0 : saved->second.at(0), " average; this run has ",
      feedback_->ranks().num_ranks, " and ", feedback_->size(),
      ". Set its option reset_errors to let them start at zero, which costs a few steps of "
      "noise");
}

template <typename O>
void OneBitRule<O>::AdoptRanks() {
  const GroupState& state = this->store().group_state(0);
  if (!HasErrors(state) || SameRanks(state)) return;
  if (feedback_->ranks().rank == 0) {
    LogWarning("optimizer ", this->store().optimizer(),
               ": the number of ranks has changed; the errors of its "
               "1-bit messages start at zero");
  }
  ResetErrors();
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_ONEBIT_DEFINITIONS_H_
