// SPDX-License-Identifier: Apache-2.0

// Optimizer: the base of all of them. It owns the parameter views and runs a step in phases; a
// derived class says what an update computes and which statistics of whole tensors it needs.
//
//   optim::AdamW optimizer(model.Parameters(), {.lr = 3e-4, .weight_decay = 0.1});
//   optimizer.set_step_options({.max_norm = 1.0});
//   Backward(criterion(model(x), y));
//   optimizer.step();
//   optimizer.zero_grad();
//
// A step:
//   decision    presence of gradients, whether all are finite, their norm -> one StepDecision,
//   before
//               any state moves. Skipped steps change nothing.
//   statistics  the derived class' phases, if it has any: partials over this rank's segments,
//   packed into
//               one buffer, reduced (StatReducer), read by later phases and by the update.
//   update      one pass over memory per parameter group; working weights are rounded in the same
//   pass.
// A parameter whose gradient is absent, or that is frozen, is left alone altogether: no decay, no
// momentum, no step count. A gradient of zeros is a gradient.
//
// With a StatReducer over several ranks, all ranks must call step() together. Not thread-safe.
#ifndef APOGEE_OPTIM_OPTIMIZER_H_
#define APOGEE_OPTIM_OPTIMIZER_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apogee/core/trace.h"
#include "apogee/optim/device_decision.h"
#include "apogee/optim/lr_target.h"
#include "apogee/optim/param_view.h"
#include "apogee/optim/state_dict.h"
#include "apogee/optim/stats.h"
#include "apogee/optim/step.h"

namespace apogee::optim {

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

  // One update from the gradients at hand. Returns the closure's loss when there is a closure.
  // Throws Error under NonFinitePolicy::kThrow; then, as after any failure before the update,
  // nothing changed.
  std::optional<Tensor> step(const Closure& closure = {});
  // Makes every gradient absent, or zero where it is present.
  void zero_grad(bool set_to_none = true);
  // What the last step() did. Where a GPU decided (DecidesOnDevice), this waits for it.
  const StepReport& last_step() const {
    Settle();
    return report_;
  }
  int64_t num_skipped_steps() const {
    Settle();
    return num_skipped_;
  }
  // False where the last step() is known to have changed nothing. Never waits.
  bool may_have_updated() const { return report_.num_updated > 0; }

  void set_step_options(const StepOptions& options);
  const StepOptions& step_options() const { return step_options_; }
  // Every step() becomes a span of this lane, which must outlive the optimizer; null: none does.
  void set_trace_lane(TraceLane* lane) { trace_lane_ = lane; }
  // Runs at the beginning of every step(); what it throws leaves everything as it was.
  using StepHook = std::function<void(Optimizer&)>;
  void AddPreStepHook(StepHook hook) { pre_step_hooks_.push_back(std::move(hook)); }
  // Runs at the end of every step(), also of a skipped one, in the order added.
  void AddStepHook(StepHook hook) { step_hooks_.push_back(std::move(hook)); }
  // Runs when last_step() of a step is known: behind the step hooks, or, where a GPU decided, when
  // somebody asks for it, at the latest when the next step() begins. A loss scaler updates here.
  void AddReportHook(StepHook hook) { report_hooks_.push_back(std::move(hook)); }
  // Runs whenever load_state_dict has taken a dict over, weights included: a wrapper that holds
  // copies of them renews these there.
  void AddLoadHook(StepHook hook) { load_hooks_.push_back(std::move(hook)); }
  // Replaces the single-rank reducer; nullptr restores it.
  void set_stat_reducer(std::unique_ptr<StatReducer> reducer);

  // Handles on the states, the step counts and the options of every group; see state_dict.h.
  StateDict state_dict() const;
  // Checks everything, then takes it over; on an error nothing has changed and the message lists
  // what does not fit. Element-wise states must have this rank's layout. Collective under a plugin
  // that shards.
  absl::Status load_state_dict(const StateDict& dict);
  // The error that load_state_dict would return; changes nothing.
  absl::Status CheckStateDict(const StateDict& dict) const;
  // What this rank holds of a state of `view` that is not low-rank: element-wise ones lie as the
  // view does, scales of blocks that no cut goes through are those of its blocks, others are whole.
  comm::Layout StateLayout(const ParamView& view, int group, const NamedState& state) const;
  // Fills in the states of a dict that has everything else: for every view with steps, each state
  // that this rank is to have under the dict's options, and its master weights (where
  // `has_master(name)`), is made of zeros and read. Errors of `read`, and those of options that do
  // not fit, come back all together. Changes nothing.
  using ReadState = std::function<absl::Status(const ParamView& view, const std::string& state,
                                               const comm::Layout& layout, const Tensor& to)>;
  absl::Status ReadStates(const ReadState& read,
                          const std::function<bool(const std::string& name)>& has_master,
                          StateDict& dict) const;
  // Master weights take over weights that were loaded into the model since they were made.
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
  // Bytes of the states that all trainable parameters have or will have, masters excluded.
  int64_t PlannedStateBytes() const;
  int64_t PlannedStateBytes(const ParamView& view, int group) const;
  // Whether the update stays exact when views are bound to shards: it touches only a view's own
  // elements, and what it needs of whole tensors it declares as statistics. Say so in an optimizer
  // of your own once that holds; without it, plugins that shard refuse it.
  virtual bool SupportsShards() const { return false; }
  // Shards of `view` may be cut at multiples of this many elements only. (Exactness does not depend
  // on it: blocks of quantized states that no cut goes through need no statistics.)
  virtual int64_t CutMultiple(const ParamView& /*view*/, int /*group*/) const { return 1; }
  // Whether every kernel of the next step takes the factor of the gradients as a GradFactor, and
  // nothing of the decision or the statistics is read on the host. Then step() on a GPU waits for
  // nothing, under kSkip and kProceed, unless a gradient is absent that another rank may have.
  virtual bool DecidesOnDevice() const { return false; }
  // Elements of the states of `view` that its owner alone keeps when the view is a shard
  // (ParamView::owned); 0: there are none.
  virtual int64_t OwnedNumel(const ParamView& /*view*/, int /*group*/) const { return 0; }
  // Whether the statistics sum the gradient of `view` over the ranks themselves, in less than its
  // size (ParamView::partial_grad). What is unreduced has no norm, so this holds without clipping
  // only.
  virtual bool ReducesOwnGrad(const ParamView& /*view*/, int /*group*/) const { return false; }
  // Whether a norm over addends of gradients is good enough to clip by: the root of the mean of the
  // ranks' squared norms, which is the same on every rank and at least the norm of their mean.
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
  // Where states of kind kPerRank lie: this rank's of those of `num_ranks` that are saved together.
  void set_rank(int rank, int num_ranks);
  // Drops states that belong to other ranks since views were bound or owners assigned.
  void DropUndeclaredStates();

  // One number for the options of all groups and the step options: ranks that step together must
  // have the same, or step() throws Error on each of them (options_agreement.h).
  uint64_t OptionsDigest() const;
  // Every option of a group, as text.
  virtual OptionMap group_options(int group) const = 0;
  // Numbers that belong to a group as a whole, saved with it; empty for most optimizers. Waits
  // where a GPU keeps them.
  const GroupState& group_state(int group) const {
    GroupState& state = group_states_[static_cast<size_t>(group)];
    FetchGroupState(group, state);
    return state;
  }

 protected:
  // Throws one Error that lists: no parameters at all, an empty group, a parameter in two places,
  // two parameters of one name, and `problems` (those of the options).
  Optimizer(std::string name, std::vector<std::vector<autograd::ParameterPtr>> groups,
            std::vector<std::string> problems);

  // The states that a parameter of the group has. They are made of zeros before its first update.
  virtual std::span<const StateSpec> StateSpecs(const ParamView& view, int group) const = 0;
  // As above under the options of a checkpoint, which CheckGroupOptions found good.
  virtual std::span<const StateSpec> SavedStateSpecs(const ParamView& view, int group,
                                                     const OptionMap& saved) const = 0;
  // The states that a parameter has beyond these in the phase of training that `state`, the group's
  // own or a saved one, tells of. The optimizer makes them itself. An error says why those of a
  // checkpoint cannot be taken over.
  virtual absl::Status PhaseStateSpecs(const ParamView& /*view*/, int /*group*/,
                                       const GroupState& /*state*/,
                                       std::vector<StateSpec>& /*specs*/) const {
    return absl::OkStatus();
  }

  // Statistics of whole tensors, in phases 0 .. num_stat_phases() - 1.
  virtual int num_stat_phases() const { return 0; }
  // Reserves the numbers of `phase` for each parameter, in the same order on every rank.
  virtual void DeclareStats(int /*phase*/, std::span<const ActiveParam> /*params*/,
                            StatBuffer& /*buffer*/) {}
  // Adds this rank's partials. `totals[p]` holds the reduced numbers of phase p < `phase`.
  virtual void ComputeStats(int /*phase*/, std::span<const ActiveParam> /*params*/,
                            const StepDecision& /*decision*/,
                            std::span<const StatBuffer> /*totals*/, StatBuffer& /*buffer*/) {}
  // Asked after the last phase, before anything moves: the name of a parameter for whose sake every
  // rank skips the step, as for a gradient that is not finite; empty: go on.
  virtual std::string NonFiniteAfterStats() const { return ""; }
  // Updates one group's parameters, whose steps have been advanced. `totals` as above.
  virtual void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                      std::span<const StatBuffer> totals) = 0;

  // True: an absent gradient counts as one of zeros, as in references that batch parameters.
  virtual bool AbsentIsZero(int /*group*/) const { return false; }
  // Runs once at the end of a step that was not skipped and updated something; where a GPU decides,
  // that is not known yet.
  virtual void FinishStep() {}
  // Runs when it is known what a GPU decided.
  virtual void OnDecided(bool /*skipped*/) {}
  GroupState& mutable_group_state(int group) { return group_states_[static_cast<size_t>(group)]; }
  // Makes `state` good, for an optimizer whose kernels keep it in memory of their own.
  virtual void FetchGroupState(int /*group*/, GroupState& /*state*/) const {}
  // Whether other ranks take part in a step.
  bool spans_ranks() const { return spans_ranks_; }
  // Makes report, step counts and number of skips of the last step() good, where a GPU decided.
  void Settle() const {
    if (pending_.has_value()) SettlePending();
  }
  // Whether a saved group state can be taken over, under the options it was saved with.
  virtual absl::Status CheckGroupState(const GroupState& state, const OptionMap& options) const;

  // Backward of `loss` that updates each parameter when its gradient is final and then drops the
  // gradient; for optimizers that offer it (fused_backward.h). The step() that follows reports.
  void RunFusedBackward(const Tensor& loss);

  // A number for the options of one group; here, a hash of their text.
  virtual uint64_t GroupOptionsDigest(int group) const;
  // Options of a checkpoint, one map per group.
  virtual absl::Status CheckGroupOptions(const std::vector<OptionMap>& groups) const = 0;
  // Only what CheckGroupOptions found good.
  virtual void SetGroupOptions(const std::vector<OptionMap>& groups) = 0;

 private:
  friend class FusedStep;

  // A step that a GPU decides was counted as if it were not skipped, until Settle().
  struct PendingStep {
    std::vector<ParamView*> candidates;  // in the order of the marks
    std::vector<ParamView*> updated;
  };

  template <typename Self, typename Fn>
  static void ForEachView(Self& self, const Fn& fn) {
    size_t index = 0;
    for (int group = 0; group < self.num_groups(); ++group) {
      for (int i = 0; i < self.group_size(group); ++i) fn(self.views_[index++], group);
    }
  }
  // Throws Error when nobody would sum up the gradient of a view that holds an addend.
  void CheckPartialGrad(const ParamView& view, int group) const;
  // Fills `active` in and the report's nonfinite_parameter; where a GPU decides, `undecided`.
  StepDecision Decide(std::vector<ActiveParam>& active, PendingStep& undecided);
  // Whether Decide leaves the decision to the GPU.
  bool CanDecideOn(const DeviceContext& context, std::span<ParamView* const> candidates) const;
  // Norms and finite flags of grads[owners[k]].
  void MarkOnHost(const DeviceContext& context, const std::vector<Tensor>& grads,
                  const std::vector<size_t>& owners, GradMarks& marks) const;
  void MarkOnDevice(const ContextPtr& context, const std::vector<Tensor>& grads,
                    const std::vector<size_t>& owners, GradMarks& marks);
  // Whether to skip, and the clip factor, from what all gradients together are.
  void DecideFrom(bool finite, double norm, StepDecision& decision) const;
  // States, statistics, step counts, update. Group after group, like the views. False: skipped.
  bool Apply(std::span<const ActiveParam> active, const StepDecision& decision);
  // Both kinds of specs of a saved parameter; `group_state` null: none was saved.
  absl::Status AllSavedSpecs(const ParamView& view, int group, const OptionMap& options,
                             const GroupState* group_state, std::vector<StateSpec>& specs) const;
  // Counts skips, runs the hooks, throws under kThrow.
  void EndStep();
  void RunReportHooks() const;
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
  std::vector<StepHook> pre_step_hooks_, step_hooks_, report_hooks_, load_hooks_;
  mutable std::vector<GroupState> group_states_;
  int rank_ = 0, num_ranks_ = 1;
  // A GPU has found that ranks' options differ; the next step() throws.
  mutable bool options_differ_ = false;
  // What a fused backward did, until step() reports it.
  std::optional<StepReport> fused_report_;
};

// The fields of a chunk that every update has, for `param` and its compute dtype.
template <typename Chunk>
Chunk MakeUpdateChunk(const ActiveParam& param) {
  ParamView& view = *param.view;
  const Tensor master = view.master();
  Chunk chunk{};
  chunk.weight = master.raw();
  chunk.grad = param.grad.raw();
  chunk.grad_dtype = param.grad.dtype();
  if (view.needs_master()) {
    chunk.working = view.value().raw();
    chunk.working_dtype = view.value().dtype();
  }
  chunk.n = view.layout().local_numel();
  return chunk;
}

// Calls run(dtype, chunks of that compute dtype) for f32 and f64, where there are any.
template <typename Chunk, typename MakeChunk, typename RunKernel>
void ForEachComputeDType(std::span<const ActiveParam> params, const MakeChunk& make,
                         const RunKernel& run) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    std::vector<Chunk> chunks;
    for (const ActiveParam& param : params) {
      if (param.view->compute_dtype() == dtype) chunks.push_back(make(param));
    }
    if (!chunks.empty()) run(dtype, std::span<const Chunk>(chunks));
  }
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_OPTIMIZER_H_
