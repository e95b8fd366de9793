// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/states/state_store.h"

#include <algorithm>
#include <set>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/optim/rule.h"

namespace apogee::optim {

using internal::Concat;

namespace {

// Bytes of a quantized weight, which no optimizer updates.
bool IsBytesOfWeight(const autograd::Parameter& parameter) {
  return !parameter.requires_grad() && parameter.has_value() && parameter.dtype() == DType::kU8;
}

}  // namespace

StateStore::StateStore(std::string optimizer,
                       std::span<const std::vector<autograd::ParameterPtr>> groups,
                       std::vector<std::string> problems)
    : optimizer_(std::move(optimizer)) {
  std::set<const autograd::Parameter*> seen;
  std::set<std::string> names;
  if (groups.empty()) problems.emplace_back("there are no parameter groups");
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].empty()) problems.push_back(Concat("group ", g, " has no parameters"));
    const size_t num_before = views_.size();
    for (const autograd::ParameterPtr& parameter : groups[g]) {
      if (parameter == nullptr) {
        problems.push_back(Concat("group ", g, " has a null parameter"));
      } else if (!seen.insert(parameter.get()).second) {
        problems.push_back(Concat("parameter \"", parameter->name(),
                                  "\" is given twice; give each parameter to one group, once"));
      } else if (!names.insert(parameter->name()).second) {
        problems.push_back(Concat("two parameters are named \"", parameter->name(),
                                  "\"; states are kept by name, so names must differ"));
      } else if (!IsBytesOfWeight(*parameter)) {
        views_.emplace_back(parameter);
      }
    }
    group_sizes_.push_back(static_cast<int>(views_.size() - num_before));
  }
  group_states_.resize(groups.size());
  if (!problems.empty()) Throw("optimizer ", optimizer_, ": ", JoinTexts(problems));
}

const GroupState& StateStore::group_state(int group) const {
  rule_->On(RuleEvent::kReadGroupState);
  return group_states_[static_cast<size_t>(group)];
}

std::vector<StateSpec> StateStore::Specs(const ParamView& view, int group) const {
  std::vector<StateSpec> specs;
  rule_->ListStates(view, group, nullptr, group_states_[static_cast<size_t>(group)], specs);
  return specs;
}

void StateStore::Make(ParamView& view, int group) {
  for (const StateSpec& spec : Specs(view, group)) {
    if (!spec.made_by_rule) view.AddState(spec);
  }
}

void StateStore::DropUndeclared() {
  rule_->On(RuleEvent::kReadGroupState);
  ForEachView([this](ParamView& view, int group) {
    const std::vector<StateSpec> specs = Specs(view, group);
    std::vector<NamedState> kept;
    for (const NamedState& state : view.states()) {
      const auto named = [&](const StateSpec& spec) { return state.name == spec.name; };
      if (std::ranges::any_of(specs, named)) kept.push_back(state);
    }
    view.ReplaceStates(std::move(kept));
  });
}

int64_t StateStore::PlannedBytes() const {
  int64_t bytes = 0;
  ForEachView([&](const ParamView& view, int group) { bytes += PlannedBytes(view, group); });
  return bytes;
}

int64_t StateStore::PlannedBytes(const ParamView& view, int group) const {
  if (!view.trainable()) return 0;
  int64_t bytes = 0;
  for (const StateSpec& spec : Specs(view, group)) {
    if (spec.made_by_rule) continue;
    bytes += view.StateShape(spec).numel() * DTypeSize(view.StateDType(spec.kind));
  }
  return bytes;
}

void StateStore::set_rank(int rank, int num_ranks) {
  APOGEE_CHECK(0 <= rank && rank < num_ranks, "optimizer ", optimizer_, ": rank ", rank, " of ",
               num_ranks, " does not exist");
  rank_ = rank;
  num_ranks_ = num_ranks;
}

}  // namespace apogee::optim
