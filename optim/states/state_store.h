// SPDX-License-Identifier: Apache-2.0

// StateStore: the parameters of an optimizer as views, their states and the states of its groups.
// It makes states as the rule lists them, drops those that this rank does not keep, and saves,
// checks and loads them. Checkpoints read them here.
//
//   StateStore& states = optimizer.states();
//   for (const ParamView& view : states.views()) ...
//   states.PlannedBytes();                                   // of this rank, without masters
//   const Layout layout = states.LayoutOf(view, group, view.states()[0]);
//
// StateDict: the state of an optimizer by name. A checkpoint saves it and load_state_dict loads it.
//
//   StateDict dict = optimizer.state_dict();
//   dict.params["wte.weight"].states["exp_avg"].value;      // Tensor, f32
//   absl::Status status = other.load_state_dict(dict);
//
// Its tensors are handles on the live states, not copies: save or clone them before the next step.
// Not a collective. Under a plugin that shards, every rank has its part of the states.
#ifndef APOGEE_OPTIM_STATES_STATE_STORE_H_
#define APOGEE_OPTIM_STATES_STATE_STORE_H_

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "apogee/optim/options.h"
#include "apogee/optim/param_view.h"

namespace apogee::optim {

class UpdateRule;

struct StateEntry {
  StateKind kind = StateKind::kElementwise;
  Tensor value;
};

struct ParamState {
  // The number of updates so far. A parameter that never had a gradient has 0 and no states.
  int64_t step = 0;
  // By state name: "exp_avg", ...; "master" for fp32 master weights.
  std::map<std::string, StateEntry> states;
  // The position of this rank's element-wise states in the logical tensor.
  Layout layout;
};

// Numbers of a parameter group as a whole, by name ("model_norms", "step_num"). Equal on every
// rank.
using GroupState = std::map<std::string, std::vector<double>>;

struct StateDict {
  std::string optimizer;          // "adamw"
  std::vector<OptionMap> groups;  // every option of each group, the current learning rate included
  std::map<std::string, ParamState> params;  // by parameter name
  std::vector<GroupState> group_states;      // one per group; an empty vector: all are empty
};

class StateStore {
 public:
  // `optimizer`: its name. Throws one Error that lists every problem: no groups, an empty group, a
  // null parameter, a parameter given twice, two parameters with the same name, and `problems` (of
  // the options).
  StateStore(std::string optimizer, std::span<const std::vector<autograd::ParameterPtr>> groups,
             std::vector<std::string> problems);
  // Call once, before everything below.
  void Attach(UpdateRule& rule) { rule_ = &rule; }

  const std::string& optimizer() const { return optimizer_; }
  int num_groups() const { return static_cast<int>(group_sizes_.size()); }
  int group_size(int group) const { return group_sizes_[static_cast<size_t>(group)]; }
  // All views, group after group, in the order of construction.
  std::span<ParamView> views() { return views_; }
  std::span<const ParamView> views() const { return views_; }
  // Calls fn(view, group) for all views.
  template <typename Fn>
  void ForEachView(const Fn& fn) {
    ForEachView(*this, fn);
  }
  template <typename Fn>
  void ForEachView(const Fn& fn) const {
    ForEachView(*this, fn);
  }

  // Numbers that belong to a group as a whole and are saved with it; empty for most optimizers.
  // Waits for the GPU if they are in its memory.
  const GroupState& group_state(int group) const;
  GroupState& mutable_group_state(int group) { return group_states_[static_cast<size_t>(group)]; }

  // The states of a view in the present phase of training.
  std::vector<StateSpec> Specs(const ParamView& view, int group) const;
  // Makes the states that `view` lacks, as zeros, but for those that the rule makes itself.
  void Make(ParamView& view, int group);
  // Drops states that this rank no longer keeps after views were bound or owners assigned.
  void DropUndeclared();
  // Bytes of the states that this rank has or will have for trainable parameters, without masters.
  int64_t PlannedBytes() const;
  int64_t PlannedBytes(const ParamView& view, int group) const;

  // States of kind kPerRank are saved as part `rank` of `num_ranks`.
  void set_rank(int rank, int num_ranks);
  // Whether other ranks take part in steps.
  bool spans_ranks() const { return spans_ranks_; }
  void set_spans_ranks(bool spans_ranks) { spans_ranks_ = spans_ranks; }

  // The part of a state of `view` that this rank holds; not for low-rank states. An element-wise
  // state has the view's layout. Block scales are those of the view's blocks, if no shard boundary
  // falls inside a block. Other states are whole.
  Layout LayoutOf(const ParamView& view, int group, const NamedState& state) const;
  StateDict Save() const;
  // Checks the whole dict, then loads it; see Optimizer::load_state_dict.
  absl::Status Load(const StateDict& dict);
  // The error that Load would return; changes nothing.
  absl::Status Check(const StateDict& dict) const;
  // Fills in the states of a dict that has everything else. For every view with at least one step,
  // creates each state that this rank needs under the dict's options, and the master weights if
  // `has_master(name)`, as zeros and calls `read` for it. Returns all errors of `read` together.
  // Reads nothing if the options or the states of groups do not fit. Changes only `dict`.
  using ReadState = std::function<absl::Status(const ParamView& view, const std::string& state,
                                               const Layout& layout, const Tensor& to)>;
  absl::Status Read(const ReadState& read,
                    const std::function<bool(const std::string& name)>& has_master,
                    StateDict& dict) const;

 private:
  template <typename Self, typename Fn>
  static void ForEachView(Self& self, const Fn& fn) {
    size_t index = 0;
    for (int group = 0; group < self.num_groups(); ++group) {
      for (int i = 0; i < self.group_size(group); ++i) fn(self.views_[index++], group);
    }
  }
  // The states of a view of `dict`.
  std::vector<StateSpec> SavedSpecs(const StateDict& dict, const ParamView& view, int group) const;
  // Problems with the optimizer's name, the numbers of groups and the options; then with the states
  // of groups; then with a parameter and, if `states`, with its states.
  std::vector<std::string> HeadProblems(const StateDict& dict) const;
  std::vector<std::string> GroupProblems(const StateDict& dict) const;
  void AddViewProblems(const StateDict& dict, const ParamView& view, int group, bool states,
                       std::vector<std::string>& problems) const;

  std::string optimizer_;
  UpdateRule* rule_ = nullptr;
  std::vector<ParamView> views_;
  std::vector<int> group_sizes_;
  std::vector<GroupState> group_states_;
  int rank_ = 0, num_ranks_ = 1;
  bool spans_ranks_ = false;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STATES_STATE_STORE_H_
