// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/step/fused_step.h"

#include <utility>
#include <vector>

#include "apogee/optim/core/grad_marks.h"
#include "apogee/optim/step/step_runner.h"

namespace apogee::optim {

FusedStep::FusedStep(Optimizer& optimizer) : optimizer_(optimizer), runner_(*optimizer.runner_) {
  constexpr const char* kReason =
      "; a fused backward uses each gradient up as soon as it is final, so gradients of several "
      "backward calls "
      "cannot be accumulated: use one larger batch, and call step() after each backward";
  APOGEE_CHECK(!runner_.fused_report_.has_value(), "optimizer ", optimizer.name(),
               ": fused_backward was called twice without step() in between", kReason);
  for (const ParamView& view : optimizer.views()) {
    APOGEE_CHECK(!view.has_grad(), "optimizer ", optimizer.name(), ": parameter \"", view.name(),
                 "\" already has a gradient", kReason);
  }
  runner_.fused_report_.emplace().inv_loss_scale = 1 / optimizer.step_options().loss_scale;
}

FusedStep::~FusedStep() {
  if (finished_) return;
  runner_.fused_report_.reset();
  optimizer_.zero_grad();
}

StepReport& FusedStep::report() const { return *runner_.fused_report_; }

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
  GradMarks marks(views, /*norms=*/true, optimizer_.step_options().norm_kind,
                  runner_.SharedDigest());
  for (size_t i = 0; i < views.size(); ++i) {
    const auto found = norms_.find(views[i]);
    if (found != norms_.end()) marks.SetNorm(i, found->second);
  }
  marks.Reduce(runner_.reducer());
  if (!marks.DigestsAgree()) runner_.ThrowOptionsDiffer(runner_.reducer().group());
  const ParamView* bad = marks.FirstNonFinite();
  runner_.DecideFrom(bad == nullptr, marks.TotalNorm(), report());
  if (report().skip) report().nonfinite_parameter = bad->name();
}

void FusedStep::Update(std::span<const ActiveParam> params, StatReducer* reducer) {
  std::vector<StatBuffer> totals;
  StatReducer& sums = reducer != nullptr ? *reducer : runner_.reducer();
  if (params.empty() || !runner_.Prepare(params, sums, report(), totals)) return;
  runner_.Apply(params, report(), totals);
  for (const ActiveParam& param : params) param.view->DropTemporaries();
  report().num_updated += static_cast<int64_t>(params.size());
}

void FusedStep::Finish() {
  if (report().num_updated > 0) runner_.rule_.On(RuleEvent::kUpdated);
  finished_ = true;
}

}  // namespace apogee::optim
