// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/step/fused_step.h"

#include <utility>
#include <vector>

#include "apogee/optim/core/grad_marks.h"
#include "apogee/optim/core/options_agreement.h"

namespace apogee::optim {

FusedStep::FusedStep(Optimizer& optimizer) : optimizer_(optimizer) {
  constexpr const char* kReason =
      "; a fused backward uses each gradient up as soon as it is final, so gradients of several "
      "backward calls "
      "cannot be accumulated: use one larger batch, and call step() after each backward";
  APOGEE_CHECK(!optimizer.fused_report_.has_value(), "optimizer ", optimizer.name(),
               ": fused_backward was called twice without step() in between", kReason);
  for (const ParamView& view : optimizer.views()) {
    APOGEE_CHECK(!view.has_grad(), "optimizer ", optimizer.name(), ": parameter \"", view.name(),
                 "\" already has a gradient", kReason);
  }
  optimizer.fused_report_.emplace().inv_loss_scale = 1 / optimizer.step_options().loss_scale;
}

FusedStep::~FusedStep() {
  if (finished_) return;
  optimizer_.fused_report_.reset();
  optimizer_.zero_grad();
}

bool FusedStep::needs_norms() const {
  const StepOptions& options = optimizer_.step_options();
  return options.max_norm > 0 || options.nonfinite != NonFinitePolicy::kProceed;
}

void FusedStep::AddNorm(const ParamView& view, const Tensor& grad) {
  NormChunk chunk{grad.raw(), grad.dtype(), view.layout().local_numel(), 0};
  OptimKernelsFor(*grad.context())
      .grad_norm(*grad.context(), {optimizer_.step_options().norm_kind, std::span(&chunk, 1)});
  norms_[&view] = chunk.result;
}

void FusedStep::Decide() {
  std::vector<ParamView*> views;
  for (ParamView& view : optimizer_.views()) {
    if (view.trainable()) views.push_back(&view);
  }
  if (views.empty()) return;
  const auto digest =
      optimizer_.spans_ranks_ ? std::optional(optimizer_.OptionsDigest()) : std::nullopt;
  GradMarks marks(views, /*norms=*/true, optimizer_.step_options().norm_kind, digest);
  for (size_t i = 0; i < views.size(); ++i) {
    const auto found = norms_.find(views[i]);
    if (found != norms_.end()) marks.SetNorm(i, found->second);
  }
  marks.Reduce(*optimizer_.reducer_);
  if (!marks.DigestsAgree()) ThrowOptionsDiffer(optimizer_, optimizer_.reducer_->group());
  const ParamView* bad = marks.FirstNonFinite();
  optimizer_.DecideFrom(bad == nullptr, marks.TotalNorm(), report());
  if (report().skip) report().nonfinite_parameter = bad->name();
}

void FusedStep::Update(std::span<const ActiveParam> params) {
  std::vector<StatBuffer> totals;
  if (params.empty() || !optimizer_.Prepare(params, report(), totals)) return;
  optimizer_.Apply(params, report(), totals);
  for (const ActiveParam& param : params) param.view->DropTemporaries();
  report().num_updated += static_cast<int64_t>(params.size());
}

void FusedStep::Finish() {
  if (report().num_updated > 0) optimizer_.FinishStep();
  finished_ = true;
}

}  // namespace apogee::optim
