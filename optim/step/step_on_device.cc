// SPDX-License-Identifier: Apache-2.0

// The parts of a step for a decision on the GPU, for which the host does not wait.
#include <algorithm>
#include <optional>
#include <utility>

#include "apogee/optim/core/grad_marks.h"
#include "apogee/optim/step/step_runner.h"

namespace apogee::optim {

bool StepRunner::CanDecideOn(const DeviceContext& context, const OptimizerTraits& traits,
                             std::span<ParamView* const> candidates) const {
  // Under kThrow, step() itself must know the decision.
  return HasDeviceDecision(context) && traits.decides_on_device &&
         options_.nonfinite != NonFinitePolicy::kThrow &&
         std::ranges::none_of(candidates, &ParamView::partial_grad);
}

void StepRunner::MarkOnDevice(const ContextPtr& context, const std::vector<Tensor>& grads,
                              const std::vector<size_t>& owners, GradMarks& marks) {
  std::vector<MarkChunk> chunks;
  for (const size_t c : owners) {
    const ParamView& view = marks.view(c);
    chunks.push_back({grads[c].raw(), grads[c].dtype(), view.layout().local_numel(),
                      static_cast<int64_t>(c), static_cast<double>(view.num_replicas())});
  }
  marks.MarkOnDevice(DecisionOn(context), chunks);
}

DeviceDecision& StepRunner::DecisionOn(const ContextPtr& context) {
  if (device_decision_ == nullptr || device_decision_->context() != context) {
    device_decision_ = MakeDeviceDecision(context);
  }
  return *device_decision_;
}

const StepGate* StepRunner::DecideOnDevice(const GradMarks& marks) {
  return device_decision_->Decide({.kind = options_.norm_kind,
                                   .check_finite = options_.nonfinite != NonFinitePolicy::kProceed,
                                   .max_norm = options_.max_norm,
                                   .has_digest = marks.has_digest(),
                                   .inv_loss_scale = 1 / options_.loss_scale},
                                  marks.on_device(), marks.count());
}

void StepRunner::SettlePending() const {
  const PendingStep pending = *std::exchange(pending_, std::nullopt);
  const StepGate outcome = device_decision_->Wait();
  report_.gate = nullptr;
  report_.grad_norm = outcome.grad_norm;
  report_.clip_factor = outcome.clip_factor;
  report_.skip = outcome.skip;
  options_differ_ = outcome.options_differ;
  if (outcome.first_nonfinite >= 0) {
    report_.nonfinite_parameter =
        pending.candidates[static_cast<size_t>(outcome.first_nonfinite)]->name();
  }
  if (outcome.skip) {
    for (ParamView* view : pending.updated) view->set_step(view->step() - 1);
    report_.num_updated = 0;
  }
  // A fused backward may have found no gradient to update with.
  if (!pending.updated.empty()) rule_.On(outcome.skip ? RuleEvent::kRevoked : RuleEvent::kKept);
  TellDecided();
}

}  // namespace apogee::optim
