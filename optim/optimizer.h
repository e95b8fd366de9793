// SPDX-License-Identifier: Apache-2.0

// Optimizer: the base class of all optimizers. It owns the parameter views and runs a step in
// phases; a derived class defines the update and the statistics of whole tensors that it needs.
//
//   optim::AdamW optimizer(model.Parameters(), {.lr = 3e-4, .weight_decay = 0.1});
//   optimizer.set_step_options({.max_norm = 1.0});
//   Backward(criterion(model(x), y));
//   optimizer.step();
//   optimizer.zero_grad();
//
// A step has three phases:
//   decision    Which gradients are present, whether all are finite, their norm. From these follows
//               one StepDecision, before any state changes. A skipped step changes nothing.
//   statistics  Only if the derived class has any. Each rank writes partials over its own elements
//               into one packed buffer, a StatReducer reduces it, and later phases and the update
//               read the totals.
//   update      One pass over memory per parameter group; working weights are rounded in the same
//               pass.
// A parameter that is frozen or has no gradient is left alone: no decay, no momentum, no step
// count. A gradient of zeros counts as a gradient.
//
// Where a GPU makes the decision (DecidesOnDevice), step() queues its work and returns; last_step()
// waits for the outcome. With a StatReducer over several ranks, all ranks must call step()
// together. Not thread-safe.
#ifndef APOGEE_OPTIM_OPTIMIZER_H_
#define APOGEE_OPTIM_OPTIMIZER_H_

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apogee/core/step_listener.h"
#include "apogee/core/trace/trace.h"
#include "apogee/optim/core/stats.h"
#include "apogee/optim/param_view.h"
#include "apogee/optim/schedule/lr_target.h"
#include "apogee/optim/state_dict.h"
#include "apogee/optim/step/step.h"

namespace apogee::optim {

class DeviceDecision;
class GradMarks;

class Optimizer : public LrTarget {
 public:
  // Computes the loss and its gradients anew; may call zero_grad and Backward.
  using Closure = std::function<Tensor()>;

  ~Optimizer() override;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // The name in the registry: "adamw".
  const std::string& name() const { return name_; }

  // One update from the present gradients. With a closure, calls it first and returns its loss.
  // Throws Error for a gradient that is not finite under NonFinitePolicy::kThrow, and when options
  // differ between ranks. After any failure before the update, nothing has changed.
  std::optional<Tensor> step(const Closure& closure = {});
  // Drops every gradient; with set_to_none = false, fills present gradients with zeros instead.
  void zero_grad(bool set_to_none = true);
  // The report of the last step(). Waits for the GPU if the GPU made the decision
  // (DecidesOnDevice).
  const StepReport& last_step() const {
    Settle();
    return report_;
  }
  int64_t num_skipped_steps() const {
    Settle();
    return num_skipped_;
  }
  // False if the last step() is known to have changed nothing. Never waits.
  bool may_have_updated() const { return report_.num_updated > 0; }

  void set_step_options(const StepOptions& options);
  const StepOptions& step_options() const { return step_options_; }
  // Records every step() as a span of this lane, which must outlive the optimizer. Null: no spans.
  void set_trace_lane(TraceLane* lane) { trace_lane_ = lane; }
  // `listener` hears the events of every step (core/step_listener.h) until the subscription ends.
  [[nodiscard]] Subscription AddListener(StepListener& listener) {
    return listeners_->Add(listener);
  }
  // For a plugin, which tells the events of backward and of values.
  const std::shared_ptr<StepListeners>& listeners() const { return listeners_; }
  // From now on step() throws Error with this text. A plugin that is destroyed before the optimizer
  // calls it, because nobody would reduce gradients any more.
  void RefuseSteps(std::string why) { refusal_ = std::move(why); }
  // Replaces the single-rank reducer; nullptr restores it.
  void set_stat_reducer(std::unique_ptr<StatReducer> reducer);

  // Handles on the states, the step counts and the options of every group; see state_dict.h.
  StateDict state_dict() const;
  // Checks the whole dict, then loads it. On an error nothing has changed, and the message lists
  // everything that does not fit. Element-wise states must have this rank's layout. Under a plugin
  // that shards, all ranks must call together.
  absl::Status load_state_dict(const StateDict& dict);
  // The error that load_state_dict would return; changes nothing.
  absl::Status CheckStateDict(const StateDict& dict) const;
  // The part of a state of `view` that this rank holds; not for low-rank states. An element-wise
  // state has the view's layout. Block scales are those of the view's blocks, if no shard boundary
  // falls inside a block. Other states are whole.
  Layout StateLayout(const ParamView& view, int group, const NamedState& state) const;
  // Fills in the states of a dict that has everything else. For every view with at least one step,
  // creates each state that this rank needs under the dict's options, and the master weights if
  // `has_master(name)`, as zeros and calls `read` for it. Returns all errors together: those of
  // `read` and those of options that do not fit. Changes only `dict`.
  using ReadState = std::function<absl::Status(const ParamView& view, const std::string& state,
                                               const Layout& layout, const Tensor& to)>;
  absl::Status ReadStates(const ReadState& read,
                          const std::function<bool(const std::string& name)>& has_master,
                          StateDict& dict) const;
  // Copies the model's weights into the master weights. Call after loading weights into the model.
  void RefreshMasters();

  int num_groups() const override { return static_cast<int>(group_sizes_.size()); }
  // Number of parameters of a group.
  int group_size(int group) const { return group_sizes_[static_cast<size_t>(group)]; }
  // All views, group after group, in the order of construction.
  std::span<ParamView> views() {
    Settle();
    return views_;
  }
  std::span<const ParamView> views() const {
    Settle();
    return views_;
  }
  // Bytes of the states that this rank has or will have for trainable parameters, without masters.
  int64_t PlannedStateBytes() const;
  int64_t PlannedStateBytes(const ParamView& view, int group) const;
  // Whether the update stays exact when views are bound to shards. That needs two things: the
  // update touches only the view's own elements, and every number it needs of whole tensors is
  // declared as a statistic. Return true in your own optimizer once both hold; plugins that shard
  // refuse it otherwise.
  virtual bool SupportsShards() const { return false; }
  // Plugins cut shards of `view` only at multiples of this many elements. If no block of a
  // quantized state is cut, its scale needs no statistics; the result is the same either way.
  virtual int64_t CutMultiple(const ParamView& /*view*/, int /*group*/) const { return 1; }
  // Whether every kernel of the next step takes the gradients' factor as a GradFactor, and the host
  // reads neither the decision nor the statistics. If so, step() on a GPU does not wait under kSkip
  // and kProceed, unless a gradient is absent here that another rank may have.
  virtual bool DecidesOnDevice() const { return false; }
  // How many state elements of `view` only its owner keeps when the view is a shard
  // (ParamView::owned). 0: none.
  virtual int64_t OwnedNumel(const ParamView& /*view*/, int /*group*/) const { return 0; }
  // Whether the statistics themselves reduce the gradient of `view` over the ranks, sending fewer
  // numbers than the gradient has (ParamView::partial_grad). No rank knows the norm of such a
  // gradient, so max_norm must be 0, unless ClipsAddends().
  virtual bool ReducesOwnGrad(const ParamView& /*view*/, int /*group*/) const { return false; }
  // Whether max_norm may clip unreduced gradients by the root of the mean of the ranks' squared
  // norms. That number is the same on every rank and at least the norm of the mean gradient.
  virtual bool ClipsAddends() const { return false; }
  // Calls fn(view, group) for all views.
  template <typename Fn>
  void ForEachView(const Fn& fn) {
    Settle();
    ForEachView(*this, fn);
  }
  template <typename Fn>
  void ForEachView(const Fn& fn) const {
    Settle();
    ForEachView(*this, fn);
  }
  // States of kind kPerRank are saved as part `rank` of `num_ranks`.
  void set_rank(int rank, int num_ranks);
  // Drops states that this rank no longer keeps after views were bound or owners assigned.
  void DropUndeclaredStates();

  // A hash of the options of all groups and of the step options. Ranks that step together must have
  // the same one, or step() throws Error on each of them (options_agreement.h).
  uint64_t OptionsDigest() const;
  // Every option of a group, as text.
  virtual OptionMap group_options(int group) const = 0;
  // Numbers that belong to a group as a whole and are saved with it; empty for most optimizers.
  // Waits for the GPU if they are in its memory.
  const GroupState& group_state(int group) const {
    GroupState& state = group_states_[static_cast<size_t>(group)];
    FetchGroupState(group, state);
    return state;
  }

 protected:
  // Throws one Error that lists every problem: no groups, an empty group, a null parameter, a
  // parameter given twice, two parameters with the same name, and `problems` (of the options).
  Optimizer(std::string name, std::vector<std::vector<autograd::ParameterPtr>> groups,
            std::vector<std::string> problems);

  // The states of a parameter of the group. They are created as zeros before its first update.
  virtual std::span<const StateSpec> StateSpecs(const ParamView& view, int group) const = 0;
  // The same under the options of a checkpoint, which have passed CheckGroupOptions.
  virtual std::span<const StateSpec> SavedStateSpecs(const ParamView& view, int group,
                                                     const OptionMap& saved) const = 0;
  // Appends the states that a parameter has only in the current phase of training. The phase
  // follows from `state`: the group's own, or that of a checkpoint. The optimizer creates these
  // states itself. An error says why the states of a checkpoint cannot be loaded.
  virtual absl::Status PhaseStateSpecs(const ParamView& /*view*/, int /*group*/,
                                       const GroupState& /*state*/,
                                       std::vector<StateSpec>& /*specs*/) const {
    return absl::OkStatus();
  }

  // Keeps a list of declarations that depends on options and shapes, so that StateSpecs can return
  // a span. Equal lists are kept once.
  std::span<const StateSpec> KeepSpecs(std::vector<StateSpec> specs) const;

  // Statistics of whole tensors, in phases 0 .. num_stat_phases() - 1.
  virtual int num_stat_phases() const { return 0; }
  // Reserves the numbers of `phase` for each parameter, in the same order on every rank.
  virtual void DeclareStats(int /*phase*/, std::span<const ActiveParam> /*params*/,
                            StatBuffer& /*buffer*/) {}
  // Adds this rank's partials. `totals[p]` holds the reduced numbers of phase p < `phase`.
  virtual void ComputeStats(int /*phase*/, std::span<const ActiveParam> /*params*/,
                            const StepDecision& /*decision*/,
                            std::span<const StatBuffer> /*totals*/, StatBuffer& /*buffer*/) {}
  // Called after the last statistics phase, before any state changes. Returns the name of a
  // parameter that makes every rank skip the step, as a gradient that is not finite does; empty: go
  // on. Must return the same on every rank.
  virtual std::string NonFiniteAfterStats() const { return ""; }
  // Updates one group's parameters. Their step counts have already advanced. `totals` holds the
  // reduced numbers of all phases.
  virtual void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                      std::span<const StatBuffer> totals) = 0;

  // True: an absent gradient counts as zeros, as in references that batch parameters.
  virtual bool AbsentIsZero(int /*group*/) const { return false; }
  // Runs once at the end of a step that was not skipped and updated something. If the GPU decides,
  // it runs before that is known.
  virtual void FinishStep() {}
  // Runs once the GPU's decision is known.
  virtual void OnDecided(bool /*skipped*/) {}
  GroupState& mutable_group_state(int group) { return group_states_[static_cast<size_t>(group)]; }
  // Brings `state` up to date, for an optimizer whose kernels keep it in the device's memory.
  virtual void FetchGroupState(int /*group*/, GroupState& /*state*/) const {}
  // Whether several ranks take part in a step.
  bool spans_ranks() const { return spans_ranks_; }
  // If the GPU decided the last step(): waits, then corrects the report, the step counts and the
  // number of skips.
  void Settle() const {
    if (pending_.has_value()) SettlePending();
  }
  // Whether a saved group state can be loaded. `options` are those it was saved with.
  virtual absl::Status CheckGroupState(const GroupState& state, const OptionMap& options) const;

  // Runs backward of `loss`, updates each parameter as soon as its gradient is final, and drops the
  // gradient. For FusedBackwardOptimizer (fused_backward.h). The following step() makes the report.
  void RunFusedBackward(const Tensor& loss);

  // A hash of the options of one group; this one hashes their text.
  virtual uint64_t GroupOptionsDigest(int group) const;
  // Checks the options of a checkpoint, one map per group.
  virtual absl::Status CheckGroupOptions(const std::vector<OptionMap>& groups) const = 0;
  // Sets options that have passed CheckGroupOptions.
  virtual void SetGroupOptions(const std::vector<OptionMap>& groups) = 0;

 private:
  friend class FusedStep;

  // A step that the GPU decides. It is counted as not skipped until Settle().
  struct PendingStep {
    std::vector<ParamView*> candidates;  // trainable views, in the order of the marks
    std::vector<ParamView*> updated;
  };

  template <typename Self, typename Fn>
  static void ForEachView(Self& self, const Fn& fn) {
    size_t index = 0;
    for (int group = 0; group < self.num_groups(); ++group) {
      for (int i = 0; i < self.group_size(group); ++i) fn(self.views_[index++], group);
    }
  }
  // Throws Error if the gradient of `view` is unreduced and this step would not reduce it.
  void CheckPartialGrad(const ParamView& view, int group) const;
  // Fills in `active`, the report's nonfinite_parameter and, for a decision on the GPU,
  // `undecided`.
  StepDecision Decide(std::vector<ActiveParam>& active, PendingStep& undecided);
  // Whether Decide leaves the decision to the GPU.
  bool CanDecideOn(const DeviceContext& context, std::span<ParamView* const> candidates) const;
  // Marks the norm and finiteness of grads[owners[k]] for every k.
  void MarkOnHost(const DeviceContext& context, const std::vector<Tensor>& grads,
                  const std::vector<size_t>& owners, GradMarks& marks) const;
  void MarkOnDevice(const ContextPtr& context, const std::vector<Tensor>& grads,
                    const std::vector<size_t>& owners, GradMarks& marks);
  // Sets `skip` and the clip factor from the norm and finiteness of all gradients together.
  void DecideFrom(bool finite, double norm, StepDecision& decision) const;
  // Creates states and reduces statistics. False: NonFiniteAfterStats skips the step.
  bool Prepare(std::span<const ActiveParam> active, const StepDecision& decision,
               std::vector<StatBuffer>& totals);
  // Advances step counts, updates group after group.
  void Apply(std::span<const ActiveParam> active, const StepDecision& decision,
             std::span<const StatBuffer> totals);
  // SavedStateSpecs and PhaseStateSpecs of a saved parameter. `group_state` null: none was saved.
  absl::Status AllSavedSpecs(const ParamView& view, int group, const OptionMap& options,
                             const GroupState* group_state, std::vector<StateSpec>& specs) const;
  // Counts the step if it is skipped, and tells listeners.
  void TellDecided() const;
  // Tells listeners; throws under kThrow.
  void EndStep();
  void SettlePending() const;
  std::vector<std::string> LoadProblems(const StateDict& dict) const;
  std::vector<StatBuffer> ReduceStats(std::span<const ActiveParam> active,
                                      const StepDecision& decision);

  std::string name_;
  std::vector<ParamView> views_;
  std::vector<int> group_sizes_;
  StepOptions step_options_;
  TraceLane* trace_lane_ = nullptr;
  std::unique_ptr<StatReducer> reducer_;
  bool spans_ranks_ = false;  // the reducer is not the single-rank one
  mutable std::optional<PendingStep> pending_;
  std::unique_ptr<DeviceDecision> device_decision_;  // made by the first step on a GPU
  mutable StepReport report_;
  mutable int64_t num_skipped_ = 0;
  // Shared with the plugin's chunks, which may outlive the optimizer.
  const std::shared_ptr<StepListeners> listeners_ = std::make_shared<StepListeners>();
  std::string refusal_;  // not empty: step() throws it
  mutable std::vector<GroupState> group_states_;
  mutable std::list<std::vector<StateSpec>> kept_specs_;
  int rank_ = 0, num_ranks_ = 1;
  // The GPU has found that options differ between ranks; the next step() throws.
  mutable bool options_differ_ = false;
  // The report of a fused backward, until step() publishes it.
  std::optional<StepReport> fused_report_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_OPTIMIZER_H_
