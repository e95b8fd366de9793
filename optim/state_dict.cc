// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {
namespace {

using internal::Concat;

constexpr const char* kMasterState = "master";

bool SameSegments(const Layout& a, const Layout& b) {
  return a.logical_shape() == b.logical_shape() && std::ranges::equal(a.segments(), b.segments());
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

StateDict Optimizer::state_dict() const {
  Settle();
  StateDict dict{.optimizer = name_, .groups = {}, .params = {}, .group_states = {}};
  for (int group = 0; group < num_groups(); ++group) {
    dict.groups.push_back(group_options(group));
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

Layout Optimizer::StateLayout(const ParamView& view, int group, const NamedState& state) const {
  if (state.kind == StateKind::kElementwise || state.kind == StateKind::kCodes) {
    return view.layout();
  }
  if (state.kind == StateKind::kPerRank) return PlaceOfRank(state.value.numel(), rank_, num_ranks_);
  const int64_t block = CutMultiple(view, group);
  const bool own_blocks = state.kind == StateKind::kBlockScale && block > 1 && view.sharded() &&
                          view.layout().cut_multiple() % block == 0;
  if (!own_blocks) return Layout(state.value.shape());
  std::vector<Segment> blocks;
  for (const Segment& segment : view.layout().segments()) {
    const int64_t begin = segment.begin / block;
    const int64_t end = (segment.begin + segment.length + block - 1) / block;
    if (segment.length > 0) blocks.push_back({begin, end - begin});
  }
  return Layout(state.value.shape(), {.segments = std::move(blocks)});
}

absl::Status Optimizer::AllSavedSpecs(const ParamView& view, int group, const OptionMap& options,
                                      const GroupState* group_state,
                                      std::vector<StateSpec>& specs) const {
  const std::span<const StateSpec> always = SavedStateSpecs(view, group, options);
  specs.assign(always.begin(), always.end());
  return group_state == nullptr ? absl::OkStatus()
                                : PhaseStateSpecs(view, group, *group_state, specs);
}

absl::Status Optimizer::ReadStates(const ReadState& read,
                                   const std::function<bool(const std::string& name)>& has_master,
                                   StateDict& dict) const {
  if (dict.groups.size() != group_sizes_.size()) {
    return InvalidArgument("optimizer ", name_, ": ", dict.groups.size(),
                           " parameter groups were saved, but this run has ", group_sizes_.size());
  }
  APOGEE_RETURN_IF_ERROR(CheckGroupOptions(dict.groups));
  std::vector<std::string> problems;
  ForEachView([&](const ParamView& view, int group) {
    const auto found = dict.params.find(view.name());
    if (found == dict.params.end()) return;  // load_state_dict reports it
    ParamState& saved = found->second;
    saved.layout = view.layout();
    const auto add = [&](const char* name, StateKind kind, const Shape& shape) {
      const Tensor value = Tensor::Zeros(shape, view.StateDType(kind), view.state_context(),
                                         MemoryCategory::kOptimizerState);
      const bool elementwise = kind == StateKind::kElementwise || kind == StateKind::kCodes;
      const Layout layout = elementwise ? view.layout()
                            : kind == StateKind::kPerRank
                                ? PlaceOfRank(shape.numel(), rank_, num_ranks_)
                                : Layout(shape);
      const absl::Status status = read(view, name, layout, value);
      if (!status.ok()) problems.push_back(Message(status));
      saved.states[name] = {kind, value};
    };
    if (saved.step > 0) {
      const OptionMap& options = dict.groups[static_cast<size_t>(group)];
      const size_t g = static_cast<size_t>(group);
      const GroupState* state = dict.group_states.empty() ? nullptr : &dict.group_states[g];
      std::vector<StateSpec> specs;
      const absl::Status status = AllSavedSpecs(view, group, options, state, specs);
      if (!status.ok()) problems.push_back(Message(status));
      for (const StateSpec& spec : specs) add(spec.name, spec.kind, view.StateShape(spec));
    }
    if (view.trainable() && view.needs_master() && view.keep_master() && has_master(view.name())) {
      add(kMasterState, StateKind::kElementwise, view.value().shape());
    }
  });
  std::string text;
  for (const std::string& problem : problems) text += (text.empty() ? "" : "; ") + problem;
  return problems.empty() ? absl::OkStatus() : absl::DataLossError(text);
}

std::vector<std::string> Optimizer::LoadProblems(const StateDict& dict) const {
  std::vector<std::string> problems;
  if (dict.optimizer != name_) {
    problems.push_back(Concat("it was saved by optimizer \"", dict.optimizer, "\""));
    return problems;
  }
  if (dict.groups.size() != group_sizes_.size()) {
    problems.push_back(
        Concat("it has ", dict.groups.size(), " parameter groups, expected ", group_sizes_.size()));
    return problems;
  }
  if (absl::Status options = CheckGroupOptions(dict.groups); !options.ok()) {
    problems.push_back(Message(options));
    return problems;
  }
  if (!dict.group_states.empty() && dict.group_states.size() != group_sizes_.size()) {
    problems.push_back(Concat("it has ", dict.group_states.size(), " group states, expected ",
                              group_sizes_.size()));
    return problems;
  }
  for (size_t group = 0; group < dict.group_states.size(); ++group) {
    const absl::Status status = CheckGroupState(dict.group_states[group], dict.groups[group]);
    if (!status.ok()) problems.push_back(Concat("group ", group, ": ", Message(status)));
  }
  size_t index = 0;
  for (size_t group = 0; group < group_sizes_.size(); ++group) {
    for (int i = 0; i < group_sizes_[group]; ++i, ++index) {
      const ParamView& view = views_[index];
      const auto found = dict.params.find(view.name());
      if (found == dict.params.end()) {
        problems.push_back(Concat("parameter \"", view.name(), "\" is missing"));
        continue;
      }
      const ParamState& saved = found->second;
      if (saved.step < 0)
        problems.push_back(Concat("\"", view.name(), "\" has a negative step count"));
      if (!SameSegments(saved.layout, view.layout())) {
        problems.push_back(
            Concat("\"", view.name(), "\" was saved with another layout (logical shape ",
                   saved.layout.logical_shape(), ", here ", view.layout().logical_shape(), ")"));
        continue;
      }
      std::vector<StateSpec> expected;
      const absl::Status status =
          AllSavedSpecs(view, static_cast<int>(group), dict.groups[group],
                        dict.group_states.empty() ? nullptr : &dict.group_states[group], expected);
      if (!status.ok()) problems.push_back(Message(status));
      for (const auto& [name, entry] : saved.states)
        CheckState(name, entry, view, expected, problems);
      for (const StateSpec& spec : expected) {
        if (saved.step > 0 && !saved.states.contains(spec.name)) {
          problems.push_back(
              Concat("state \"", spec.name, "\" of \"", view.name(), "\" is missing"));
        }
      }
    }
  }
  for (const auto& [name, state] : dict.params) {
    if (std::ranges::none_of(views_, [&](const ParamView& v) { return v.name() == name; })) {
      problems.push_back(Concat("parameter \"", name, "\" is not one of this optimizer's"));
    }
  }
  return problems;
}

absl::Status Optimizer::CheckStateDict(const StateDict& dict) const {
  const std::vector<std::string> problems = LoadProblems(dict);
  if (problems.empty()) return absl::OkStatus();
  std::string text = "optimizer " + name_ + ": the state does not fit: ";
  const size_t shown = std::min<size_t>(problems.size(), 8);
  for (size_t i = 0; i < shown; ++i) text += (i > 0 ? "; " : "") + problems[i];
  if (shown < problems.size()) {
    text += Concat("; and ", problems.size() - shown, " more");
  }
  return absl::InvalidArgumentError(text);
}

absl::Status Optimizer::load_state_dict(const StateDict& dict) {
  Settle();
  APOGEE_RETURN_IF_ERROR(CheckStateDict(dict));

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
  SetGroupOptions(dict.groups);
  group_states_ = dict.group_states;
  group_states_.resize(group_sizes_.size());
  listeners_->Tell(&StepListener::Loaded);
  return absl::OkStatus();
}

}  // namespace apogee::optim
