#include "apogee/optim/fused_backward.h"

#include <cmath>
#include <functional>
#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/optim/optimizer.h"

namespace apogee::optim {
namespace {

// Hooks on all trainable parameters, for as long as it lives: also an exception takes them off
// again.
class ScopedGradHooks {
 public:
  using OnGradient = std::function<void(ParamView&, int group)>;

  ScopedGradHooks(Optimizer& optimizer, OnGradient on_gradient)
      : on_gradient_(std::move(on_gradient)) {
    optimizer.ForEachView([this](ParamView& view, int group) {
      if (!view.trainable()) return;
      const int handle =
          view.parameter()->AddGradHook([this, &view, group](autograd::Parameter& parameter) {
            on_gradient_(view, group);
            parameter.zero_grad();
          });
      handles_.emplace_back(view.parameter(), handle);
    });
  }
  ~ScopedGradHooks() {
    for (const auto& [parameter, handle] : handles_) parameter->RemoveGradHook(handle);
  }
  ScopedGradHooks(const ScopedGradHooks&) = delete;
  ScopedGradHooks& operator=(const ScopedGradHooks&) = delete;

 private:
  OnGradient on_gradient_;
  std::vector<std::pair<autograd::ParameterPtr, int>> handles_;
};

}  // namespace

void Optimizer::CheckFusable() const {
  constexpr const char* kReason =
      "; a fused backward uses each gradient up as soon as it is final, so gradients of several "
      "backward calls "
      "cannot be accumulated: use one larger batch, and call step() after each backward";
  APOGEE_CHECK(!fused_report_.has_value(), "optimizer ", name_,
               ": fused_backward was called twice without step() in between", kReason);
  for (const ParamView& view : views_) {
    APOGEE_CHECK(view.parameter() != nullptr && view.layout().is_whole() && !view.is_shard(),
                 "optimizer ", name_, ": parameter \"", view.name(),
                 "\" is a shard or a buffer, whose gradient does not come out of backward; call "
                 "step() instead");
    APOGEE_CHECK(!view.has_grad(), "optimizer ", name_, ": parameter \"", view.name(),
                 "\" already has a gradient", kReason);
  }
}

void Optimizer::CollectNorms(const Tensor& loss, const Tensor& loss_grad, StepDecision& decision) {
  const NormKind kind = step_options_.norm_kind;
  double total = 0;
  bool finite = true;
  const auto collect = [&](ParamView& view, int) {
    const Tensor grad = view.grad();
    NormChunk chunk{grad.raw(), grad.dtype(), view.layout().local_numel(), 0};
    OptimKernelsFor(*grad.context()).grad_norm(*grad.context(), {kind, std::span(&chunk, 1)});
    const double norm = chunk.result;
    if (!std::isfinite(norm) && finite) {
      finite = false;
      fused_report_->nonfinite_parameter = view.name();
    }
    total = kind != NormKind::kMax ? total + norm : (norm > total || norm != norm ? norm : total);
  };
  const ScopedGradHooks hooks(*this, collect);
  autograd::Backward(loss, {.grad = loss_grad, .retain_graph = true});
  DecideFrom(finite, kind == NormKind::kL2 ? std::sqrt(total) : total, decision);
  if (!decision.skip) fused_report_->nonfinite_parameter.clear();
}

void Optimizer::RunFusedBackward(const Tensor& loss) {
  APOGEE_CHECK(loss.defined() && loss.numel() == 1, "optimizer ", name_,
               ": fused_backward needs a scalar loss");
  CheckFusable();
  // A backward that fails leaves no report behind, and no gradient.
  struct Cleanup {
    Optimizer* optimizer;
    ~Cleanup() {
      if (optimizer == nullptr) return;
      optimizer->fused_report_.reset();
      optimizer->zero_grad();
    }
  } cleanup{this};
  StepReport& report = fused_report_.emplace();
  report.inv_loss_scale = 1 / step_options_.loss_scale;
  const Tensor loss_grad =
      Tensor::Full(loss.shape(), loss.dtype(), step_options_.loss_scale, loss.context());
  if (step_options_.max_norm > 0 || step_options_.nonfinite != NonFinitePolicy::kProceed) {
    CollectNorms(loss, loss_grad, report);
  }
  if (!report.skip) {
    const StepDecision decision = report;
    const auto update = [&](ParamView& view, int group) {
      const ActiveParam param{&view, group, view.grad()};
      Apply(std::span(&param, 1), decision);
      ++report.num_updated;
    };
    const ScopedGradHooks hooks(*this, update);
    autograd::Backward(loss, {.grad = loss_grad});
    if (report.num_updated > 0) FinishStep();
  }
  cleanup.optimizer = nullptr;
}

}  // namespace apogee::optim
