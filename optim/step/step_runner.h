// SPDX-License-Identifier: Apache-2.0

// StepRunner runs the step of every optimizer. It has no code for any particular rule, because
// rules declare their needs (rule.h). Private to optim.
//
//   decision    Which gradients are present, whether all are finite, their norm (GradMarks). From
//               these follows one StepDecision, before any state changes. A skipped step changes
//               nothing. On a GPU the decision may stay there (DeviceDecision, StepGate).
//   statistics  Only if the rule has any. Each rank writes partials over its own elements into one
//               packed buffer, and a StatReducer reduces it; elements that several ranks hold count
//               once.
//   commit      Step counts advance, and the rule updates group after group.
//
//   StepRunner runner(store, rule, listeners);
//   runner.Step();
//   runner.report().num_updated;
//
// A parameter that is frozen or has no gradient is left alone: no decay, no momentum, no step
// count. FusedStep (fused_step.h) runs the same parts inside backward.
#ifndef APOGEE_OPTIM_STEP_STEP_RUNNER_H_
#define APOGEE_OPTIM_STEP_STEP_RUNNER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/core/step_listener.h"
#include "apogee/optim/rule.h"
#include "apogee/optim/states/state_store.h"
#include "apogee/optim/step/device_decision.h"

namespace apogee::optim {

class GradMarks;

class StepRunner {
 public:
  StepRunner(StateStore& store, UpdateRule& rule, StepListeners& listeners)
      : store_(store), rule_(rule), listeners_(listeners) {}

  // Before step() and before a fused backward: settles the last step. Throws Error if the GPU has
  // found that options differ between ranks, and within the capture of a CudaGraph.
  void BeginStep();
  void Step();
  // If the GPU decided the last step: waits, then corrects the report, the step counts and the
  // number of skips.
  void Settle() const {
    if (pending_.has_value()) SettlePending();
  }

  StepOptions& options() { return options_; }
  // Without waiting for the GPU.
  const StepReport& report() const { return report_; }
  int64_t num_skipped() const { return num_skipped_; }
  StatReducer& reducer() const { return *reducer_; }
  void set_reducer(std::unique_ptr<StatReducer> reducer);
  // A hash of the options of all groups and of the step options.
  uint64_t OptionsDigest() const;
  [[noreturn]] void ThrowOptionsDiffer(comm::Group* group) const;

 private:
  friend class FusedStep;

  // A step that the GPU decides. It is counted as not skipped until Settle().
  struct PendingStep {
    std::vector<ParamView*> candidates;  // trainable views, in the order of the marks
    std::vector<ParamView*> updated;
  };

  // Throws Error if the gradient of `view` is unreduced and this step would not reduce it.
  void CheckPartialGrad(const OptimizerTraits& traits, const ParamView& view, int group) const;
  // Fills in `active`, the report's nonfinite_parameter and, for a decision on the GPU,
  // `undecided`.
  StepDecision Decide(std::vector<ActiveParam>& active, PendingStep& undecided);
  // Whether Decide leaves the decision to the GPU.
  bool CanDecideOn(const DeviceContext& context, const OptimizerTraits& traits,
                   std::span<ParamView* const> candidates) const;
  // The digest that ranks compare; none with one rank.
  std::optional<uint64_t> SharedDigest() const;
  // Marks the norm and finiteness of grads[owners[k]] for every k.
  void MarkOnHost(const DeviceContext& context, const std::vector<Tensor>& grads,
                  const std::vector<size_t>& owners, GradMarks& marks) const;
  void MarkOnDevice(const ContextPtr& context, const std::vector<Tensor>& grads,
                    const std::vector<size_t>& owners, GradMarks& marks);
  // Makes device_decision_ if there is none for this context.
  DeviceDecision& DecisionOn(const ContextPtr& context);
  // Queues the decision from marks that all ranks have reduced.
  const StepGate* DecideOnDevice(const GradMarks& marks);
  // Sets `skip` and the clip factor from the norm and finiteness of all gradients together.
  void DecideFrom(bool finite, double norm, StepDecision& decision) const;
  // Creates states and reduces statistics into `report`. False: the statistics skip the step.
  bool Prepare(std::span<const ActiveParam> active, StatReducer& reducer, StepReport& report,
               std::vector<StatBuffer>& totals);
  // Advances step counts, updates group after group.
  void Apply(std::span<const ActiveParam> active, const StepDecision& decision,
             std::span<const StatBuffer> totals);
  // Counts the step if it is skipped, and tells listeners.
  void TellDecided() const;
  // Tells listeners; throws under kThrow.
  void End();
  void SettlePending() const;

  StateStore& store_;
  UpdateRule& rule_;
  StepListeners& listeners_;
  StepOptions options_;
  std::unique_ptr<StatReducer> reducer_ = std::make_unique<StatReducer>();
  mutable std::optional<PendingStep> pending_;
  std::unique_ptr<DeviceDecision> device_decision_;  // made by the first step on a GPU
  mutable StepReport report_;
  mutable int64_t num_skipped_ = 0;
  // The GPU has found that options differ between ranks; the next step throws.
  mutable bool options_differ_ = false;
  // The report of a fused backward, until the step publishes it, and if it has a gate
  // `fused_pending_`.
  std::optional<StepReport> fused_report_;
  PendingStep fused_pending_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STEP_STEP_RUNNER_H_
