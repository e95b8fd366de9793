// SPDX-License-Identifier: Apache-2.0

// StateStore: saving, checking and loading of state dicts.
#include <algorithm>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/optim/rule.h"
#include "apogee/optim/states/state_store.h"

namespace apogee::optim {
namespace {

using internal::Concat;

constexpr const char* kMasterState = "master";

bool SameSegments(const Layout& a, const Layout& b) {
  return a.logical_shape() == b.logical_shape() && std::ranges::equal(a.segments(), b.segments());
}

bool HasElements(StateKind kind) {
  return kind == StateKind::kElementwise || kind == StateKind::kCodes;
}

// The layout of a tensor with one row per rank, of which this rank has its own.
Layout PlaceOfRank(int64_t numel, int rank, int num_ranks) {
  return Layout({num_ranks, numel}, {.segments = {{rank * numel, numel}}});
}

// Adds a problem if a saved state does not fit the view.
void CheckState(const std::string& name, const StateEntry& entry, const ParamView& view,
                std::span<const StateSpec> expected, std::vector<std::string>& problems) {
  const std::string what = Concat("state \"", name, "\" of \"", view.name(), "\"");
  StateSpec spec{kMasterState, StateKind::kElementwise};
  if (name != kMasterState) {
    const auto found =
        std::ranges::find_if(expected, [&](const StateSpec& spec) { return name == spec.name; });
    if (found == expected.end()) {
      problems.push_back(what + " is not one of this optimizer's");
      return;
    }
    spec = *found;
  }
  if (entry.kind != spec.kind) {
    problems.push_back(Concat(what, " is saved as ", StateKindName(entry.kind), ", expected ",
                              StateKindName(spec.kind)));
  } else if (!entry.value.defined() || (IsCodes(spec.kind) ? entry.value.dtype() != DType::kU8
                                                           : !IsFloat(entry.value.dtype()))) {
    problems.push_back(what +
                       (IsCodes(spec.kind) ? " has no u8 codes" : " has no floating values"));
  } else if (entry.value.shape() != view.StateShape(spec)) {
    problems.push_back(
        Concat(what, " has shape ", entry.value.shape(), ", expected ", view.StateShape(spec)));
  }
}

}  // namespace

StateDict StateStore::Save() const {
  StateDict dict{.optimizer = optimizer_, .groups = {}, .params = {}, .group_states = {}};
  for (int group = 0; group < num_groups(); ++group) {
    dict.groups.push_back(rule_->options_table().Text(group));
    dict.group_states.push_back(group_state(group));
  }
  for (const ParamView& view : views_) {
    ParamState state{.step = view.step(), .states = {}, .layout = view.layout()};
    for (const NamedState& s : view.states()) state.states[s.name] = {s.kind, s.value};
    if (view.own_master().defined()) {
      state.states[kMasterState] = {StateKind::kElementwise, view.own_master()};
    }
    dict.params[view.name()] = std::move(state);
  }
  return dict;
}

Layout StateStore::LayoutOf(const ParamView& view, int group, const NamedState& state) const {
  if (HasElements(state.kind)) return view.layout();
  if (state.kind == StateKind::kPerRank) return PlaceOfRank(state.value.numel(), rank_, num_ranks_);
  const Layout whole(state.value.shape());
  if (state.kind != StateKind::kBlockScale || !view.sharded()) return whole;
  const int64_t block = rule_->traits().Of(view, group).cut_multiple;
  if (block == 1 || view.layout().cut_multiple() % block != 0) return whole;
  std::vector<Segment> blocks;
  for (const Segment& segment : view.layout().segments()) {
    const int64_t begin = segment.begin / block;
    const int64_t end = (segment.begin + segment.length + block - 1) / block;
    if (segment.length > 0) blocks.push_back({begin, end - begin});
  }
  return Layout(state.value.shape(), {.segments = std::move(blocks)});
}

std::vector<StateSpec> StateStore::SavedSpecs(const StateDict& dict, const ParamView& view,
                                              int group) const {
  const auto g = static_cast<size_t>(group);
  std::vector<StateSpec> specs;
  rule_->ListStates(view, group, &dict.groups[g],
                    dict.group_states.empty() ? GroupState() : dict.group_states[g], specs);
  return specs;
}

absl::Status StateStore::Read(const ReadState& read,
                              const std::function<bool(const std::string& name)>& has_master,
                              StateDict& dict) const {
  std::vector<std::string> problems = HeadProblems(dict);
  if (problems.empty()) problems = GroupProblems(dict);
  if (!problems.empty()) {
    return InvalidArgument("optimizer ", optimizer_, ": ", JoinTexts(problems));
  }
  ForEachView([&](const ParamView& view, int group) {
    const auto found = dict.params.find(view.name());
    if (found == dict.params.end()) return;  // Load reports it
    ParamState& saved = found->second;
    saved.layout = view.layout();
    const auto add = [&](const char* name, StateKind kind, const Shape& shape) {
      const Tensor value = Tensor::Zeros(shape, view.StateDType(kind), view.state_context(),
                                         MemoryCategory::kOptimizerState);
      const Layout layout = HasElements(kind) ? view.layout()
                            : kind == StateKind::kPerRank
                                ? PlaceOfRank(shape.numel(), rank_, num_ranks_)
                                : Layout(shape);
      const absl::Status status = read(view, name, layout, value);
      if (!status.ok()) problems.push_back(Message(status));
      saved.states[name] = {kind, value};
    };
    if (saved.step > 0) {
      for (const StateSpec& spec : SavedSpecs(dict, view, group)) {
        add(spec.name, spec.kind, view.StateShape(spec));
      }
    }
    if (view.trainable() && view.needs_master() && view.keep_master() && has_master(view.name())) {
      add(kMasterState, StateKind::kElementwise, view.value().shape());
    }
  });
  return problems.empty() ? absl::OkStatus() : absl::DataLossError(JoinTexts(problems));
}

std::vector<std::string> StateStore::HeadProblems(const StateDict& dict) const {
  const size_t groups = group_sizes_.size();
  if (dict.optimizer != optimizer_) {
    return {Concat("it was saved by optimizer \"", dict.optimizer, "\"")};
  }
  if (dict.groups.size() != groups) {
    return {Concat("it has ", dict.groups.size(), " parameter groups, expected ", groups)};
  }
  if (absl::Status options = rule_->options_table().Check(dict.groups); !options.ok()) {
    return {Message(options)};
  }
  if (!dict.group_states.empty() && dict.group_states.size() != groups) {
    return {Concat("it has ", dict.group_states.size(), " group states, expected ", groups)};
  }
  return {};
}

std::vector<std::string> StateStore::GroupProblems(const StateDict& dict) const {
  std::vector<std::string> problems;
  for (size_t group = 0; group < dict.group_states.size(); ++group) {
    const absl::Status status =
        rule_->CheckGroupState(dict.group_states[group], dict.groups[group]);
    if (!status.ok()) problems.push_back(Concat("group ", group, ": ", Message(status)));
  }
  return problems;
}

void StateStore::AddViewProblems(const StateDict& dict, const ParamView& view, int group,
                                 bool states, std::vector<std::string>& problems) const {
  const auto found = dict.params.find(view.name());
  if (found == dict.params.end()) {
    problems.push_back(Concat("parameter \"", view.name(), "\" is missing"));
    return;
  }
  const ParamState& saved = found->second;
  if (saved.step < 0) problems.push_back(Concat("\"", view.name(), "\" has a negative step count"));
  if (!SameSegments(saved.layout, view.layout())) {
    problems.push_back(Concat("\"", view.name(), "\" was saved with another layout (logical shape ",
                              saved.layout.logical_shape(), ", here ",
                              view.layout().logical_shape(), ")"));
    return;
  }
  if (!states) return;
  const std::vector<StateSpec> expected = SavedSpecs(dict, view, group);
  for (const auto& [name, entry] : saved.states) CheckState(name, entry, view, expected, problems);
  for (const StateSpec& spec : expected) {
    if (saved.step > 0 && !saved.states.contains(spec.name)) {
      problems.push_back(Concat("state \"", spec.name, "\" of \"", view.name(), "\" is missing"));
    }
  }
}

absl::Status StateStore::Check(const StateDict& dict) const {
  std::vector<std::string> problems = HeadProblems(dict);
  if (problems.empty()) {
    problems = GroupProblems(dict);
    // The group's state decides which states a parameter has.
    const bool states = problems.empty();
    ForEachView([&](const ParamView& view, int group) {
      AddViewProblems(dict, view, group, states, problems);
    });
    for (const auto& [name, state] : dict.params) {
      if (std::ranges::none_of(views_, [&](const ParamView& v) { return v.name() == name; })) {
        problems.push_back(Concat("parameter \"", name, "\" is not one of this optimizer's"));
      }
    }
  }
  if (problems.empty()) return absl::OkStatus();
  constexpr size_t kShown = 8;
  if (problems.size() > kShown) {
    problems[kShown] = Concat("and ", problems.size() - kShown, " more");
    problems.resize(kShown + 1);
  }
  return InvalidArgument("optimizer ", optimizer_,
                         ": the state does not fit: ", JoinTexts(problems));
}

absl::Status StateStore::Load(const StateDict& dict) {
  APOGEE_RETURN_IF_ERROR(Check(dict));

  // Makes copies first, so that running out of memory here changes nothing.
  struct Loaded {
    std::vector<NamedState> states;
    Tensor master;
  };
  std::vector<Loaded> loaded;
  for (const ParamView& view : views_) {
    Loaded& to = loaded.emplace_back();
    for (const auto& [name, entry] : dict.params.at(view.name()).states) {
      Tensor copy = Tensor::Empty(entry.value.shape(), view.StateDType(entry.kind),
                                  view.state_context(), MemoryCategory::kOptimizerState);
      copy.CopyFrom(entry.value);
      if (name == kMasterState) {
        to.master = copy;
      } else {
        to.states.push_back({name, entry.kind, copy});
      }
    }
  }
  for (size_t i = 0; i < views_.size(); ++i) {
    ParamView& view = views_[i];
    view.ReplaceStates(std::move(loaded[i].states));
    view.set_step(dict.params.at(view.name()).step);
    if (!loaded[i].master.defined()) {
      view.RefreshMaster();
    } else if (view.needs_master()) {
      view.set_master(loaded[i].master);
    } else {
      view.value().CopyFrom(loaded[i].master);  // the value is the master here
    }
  }
  rule_->options_table().Set(dict.groups);
  group_states_ = dict.group_states;
  group_states_.resize(group_sizes_.size());
  return absl::OkStatus();
}

}  // namespace apogee::optim
