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
  runner_.BeginStep();
  for (const ParamView& view : optimizer.views()) {
    APOGEE_CHECK(!view.has_grad(), "optimizer ", optimizer.name(), ": parameter \"", view.name(),
                 "\" already has a gradient", kReason);
  }
  for (ParamView& view : optimizer.views()) {
    if (!view.trainable()) continue;
    index_of_[&view] = views_.size();
    views_.push_back(&view);
  }
  if (needs_norms() && !views_.empty()) {
    const DeviceContext& context = *views_[0]->value().context();
    on_device_ = runner_.CanDecideOn(context, optimizer.traits(), views_);
    marks_ = std::make_unique<GradMarks>(views_, /*norms=*/true, optimizer.step_options().norm_kind,
                                         runner_.SharedDigest());
  }
  runner_.fused_report_.emplace().inv_loss_scale = 1 / optimizer.step_options().loss_scale;
}

FusedStep::~FusedStep() {
  if (finished_) return;
  try {
    Revoke();
  } catch (const Error&) {
    // The GPU has failed. The next call on it gets the error.
  }
  runner_.fused_report_.reset();
  optimizer_.zero_grad();
}

void FusedStep::Revoke() {
  if (report().gate == nullptr || !runner_.device_decision_->Wait().skip) return;
  for (ParamView* view : updated_) view->set_step(view->step() - 1);
}

StepReport& FusedStep::report() const { return *runner_.fused_report_; }

bool FusedStep::needs_norms() const {
  const StepOptions& options = optimizer_.step_options();
  return options.max_norm > 0 || options.nonfinite != NonFinitePolicy::kProceed;
}

void FusedStep::AddNorm(const ParamView& view, const Tensor& grad) {
  if (!on_device_) return MarkOnHost(view, grad);
  const MarkChunk chunk{grad.raw(), grad.dtype(), view.layout().local_numel(),
                        static_cast<int64_t>(index_of_.at(&view)),
                        static_cast<double>(view.num_replicas())};
  marks_->MarkOnDevice(runner_.DecisionOn(views_[0]->value().context()), std::span(&chunk, 1));
}

void FusedStep::MarkOnHost(const ParamView& view, const Tensor& grad) {
  NormChunk chunk{grad.raw(), grad.dtype(), view.layout().local_numel(), 0};
  OptimKernelsFor(*grad.context())
      .grad_norm(*grad.context(), {optimizer_.step_options().norm_kind, std::span(&chunk, 1)});
  marks_->SetNorm(index_of_.at(&view), chunk.result);
}

void FusedStep::Decide() {
  if (marks_ == nullptr) return;
  if (on_device_) {
    runner_.DecisionOn(views_[0]->value().context());
    marks_->ReduceOnDevice(runner_.reducer());
    report().gate = runner_.DecideOnDevice(*marks_);
    return;
  }
  marks_->Reduce(runner_.reducer());
  if (!marks_->DigestsAgree()) runner_.ThrowOptionsDiffer(runner_.reducer().group());
  const ParamView* bad = marks_->FirstNonFinite();
  runner_.DecideFrom(bad == nullptr, marks_->TotalNorm(), report());
  if (report().skip) report().nonfinite_parameter = bad->name();
}

void FusedStep::Update(std::span<const ActiveParam> params, StatReducer* reducer) {
  std::vector<StatBuffer> totals;
  StatReducer& sums = reducer != nullptr ? *reducer : runner_.reducer();
  if (params.empty() || !runner_.Prepare(params, sums, report(), totals)) return;
  runner_.Apply(params, report(), totals);
  for (const ActiveParam& param : params) {
    param.view->DropTemporaries();
    updated_.push_back(param.view);
  }
  report().num_updated += static_cast<int64_t>(params.size());
}

void FusedStep::Finish() {
  if (report().num_updated > 0) runner_.rule_.On(RuleEvent::kUpdated);
  if (report().gate != nullptr) {
    runner_.fused_pending_ = {.candidates = std::move(views_), .updated = std::move(updated_)};
  }
  finished_ = true;
}

}  // namespace apogee::optim
