// SPDX-License-Identifier: Apache-2.0

// The decision phase of a step.
#include <limits>
#include <optional>

#include "apogee/optim/core/grad_marks.h"
#include "apogee/optim/step/step_runner.h"

namespace apogee::optim {

void StepRunner::CheckPartialGrad(const OptimizerTraits& traits, const ParamView& view,
                                  int group) const {
  if (!view.partial_grad()) return;
  constexpr const char* kReason =
      "\" has an unreduced gradient, because at boost the optimizer could reduce something smaller "
      "itself: ";
  APOGEE_CHECK(options_.max_norm == 0 || traits.clips_addends, "optimizer ", store_.optimizer(),
               ": parameter \"", view.name(), kReason,
               "max_norm clips a norm that no rank knows; set it before boost");
  APOGEE_CHECK(traits.Of(view, group).reduces_own_grad, "optimizer ", store_.optimizer(),
               ": parameter \"", view.name(), kReason,
               "with the present options of its group it no longer can; set options before boost");
}

std::optional<uint64_t> StepRunner::SharedDigest() const {
  return store_.spans_ranks() ? std::optional(OptionsDigest()) : std::nullopt;
}

StepDecision StepRunner::Decide(std::vector<ActiveParam>& active, PendingStep& undecided) {
  std::vector<ParamView*>& candidates = undecided.candidates;  // trainable views
  std::vector<int> groups;
  store_.ForEachView([&](ParamView& view, int group) {
    if (!view.trainable()) return;
    candidates.push_back(&view);
    groups.push_back(group);
  });
  const OptimizerTraits traits = rule_.traits();
  StepDecision decision;
  decision.inv_loss_scale = 1 / options_.loss_scale;
  if (candidates.empty()) return decision;

  const bool check_finite = options_.nonfinite != NonFinitePolicy::kProceed;
  const bool need_norm = check_finite || options_.max_norm > 0;
  const ContextPtr context = candidates[0]->value().context();
  const bool spans_ranks = store_.spans_ranks();
  GradMarks marks(candidates, need_norm, options_.norm_kind, SharedDigest());
  std::vector<Tensor> grads(candidates.size());
  std::vector<size_t> owners;
  for (size_t c = 0; c < candidates.size(); ++c) {
    ParamView& view = *candidates[c];
    APOGEE_CHECK(view.value().device() == context->device(), "optimizer ", store_.optimizer(),
                 ": parameter \"", view.name(), "\" is on ", view.value().device().ToString(),
                 ", others on ", context->device().ToString(), "; make one optimizer per device");
    CheckPartialGrad(traits, view, groups[c]);
    if (!view.has_grad()) continue;
    grads[c] = view.grad();
    marks.SetPresent(c);
    owners.push_back(c);
  }
  // If a gradient is absent here, the host must read whether other ranks have it.
  const bool all_known = !spans_ranks || owners.size() == candidates.size();
  // All ranks must take the same branch, also one without gradients: with a decision on the GPU,
  // the host does not know that a step is skipped and reduces its statistics.
  const bool has_some = spans_ranks || !owners.empty();
  const bool on_device = has_some && CanDecideOn(*context, traits, candidates);
  if (on_device && need_norm) {
    MarkOnDevice(context, grads, owners, marks);
    marks.ReduceOnDevice(*reducer_);
    if (!all_known) marks.Fetch();
  } else {
    if (need_norm) MarkOnHost(*context, grads, owners, marks);
    marks.Reduce(*reducer_, /*fetch=*/!on_device || !all_known);
  }
  // If nothing was fetched, this holds trivially and the GPU compares the digests.
  if (!marks.DigestsAgree()) ThrowOptionsDiffer(reducer_->group());

  bool whole = true;
  for (size_t c = 0; c < candidates.size(); ++c) {
    ParamView& view = *candidates[c];
    if (!marks.present(c) && !traits.Of(view, groups[c]).absent_is_zero) continue;
    // A gradient that is absent here but present on another rank counts as zeros.
    if (!grads[c].defined()) {
      grads[c] = Tensor::Zeros(view.value().shape(), view.compute_dtype(), view.value().context(),
                               MemoryCategory::kGradient);
    }
    active.push_back({&view, groups[c], grads[c]});
    undecided.updated.push_back(&view);
    whole = whole && !view.partial_grad();
  }
  if (!need_norm) return decision;
  if (on_device && !active.empty()) {
    decision.gate = DecideOnDevice(marks);
    return decision;
  }
  const ParamView* bad = marks.FirstNonFinite();
  if (bad != nullptr) report_.nonfinite_parameter = bad->name();
  DecideFrom(bad == nullptr, marks.TotalNorm(), decision);
  if (!whole && !traits.clips_addends)
    decision.grad_norm = std::numeric_limits<double>::quiet_NaN();
  return decision;
}

void StepRunner::MarkOnHost(const DeviceContext& context, const std::vector<Tensor>& grads,
                            const std::vector<size_t>& owners, GradMarks& marks) const {
  std::vector<NormChunk> chunks;
  for (const size_t c : owners) {
    chunks.push_back({grads[c].raw(), grads[c].dtype(), marks.view(c).layout().local_numel(), 0});
  }
  OptimKernelsFor(context).grad_norm(context, {options_.norm_kind, chunks});
  for (size_t k = 0; k < chunks.size(); ++k) marks.SetNorm(owners[k], chunks[k].result);
}

void StepRunner::DecideFrom(bool finite, double norm, StepDecision& decision) const {
  decision.grad_norm = norm * decision.inv_loss_scale;
  decision.skip = options_.nonfinite != NonFinitePolicy::kProceed && !finite;
  if (options_.max_norm > 0 && !decision.skip) {
    // A NaN factor stays NaN: under kProceed it must reach the weights, as without clipping.
    const double factor = options_.max_norm / (decision.grad_norm + 1e-6);
    decision.clip_factor = factor > 1 ? 1 : factor;
  }
}

}  // namespace apogee::optim
