// SPDX-License-Identifier: Apache-2.0

// Optimizer::fused_backward.
#include <functional>
#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/optim/step/fused_step.h"

namespace apogee::optim {
namespace {

// Sets hooks on all trainable parameters and removes them when it is destroyed, also by an
// exception.
class ScopedGradHooks {
 public:
  using OnGradient = std::function<void(ParamView&, int group)>;

  ScopedGradHooks(Optimizer& optimizer, OnGradient on_gradient)
      : on_gradient_(std::move(on_gradient)) {
    optimizer.ForEachView([this](ParamView& view, int group) {
      if (!view.trainable()) return;
      hooks_.emplace_back(
          view.parameter()->AddGradHook([this, &view, group](autograd::Parameter& parameter) {
            on_gradient_(view, group);
            parameter.zero_grad();
          }));
    });
  }
  ScopedGradHooks(const ScopedGradHooks&) = delete;
  ScopedGradHooks& operator=(const ScopedGradHooks&) = delete;

 private:
  OnGradient on_gradient_;
  std::vector<Subscription> hooks_;
};

}  // namespace

void Optimizer::fused_backward(const Tensor& loss) {
  APOGEE_CHECK(traits().fused_backward, "optimizer ", name(),
               " does not update inside backward; call Backward and step()");
  APOGEE_CHECK(loss.defined() && loss.numel() == 1, "optimizer ", name(),
               ": fused_backward needs a scalar loss");
  for (const ParamView& view : views()) {
    APOGEE_CHECK(view.parameter() != nullptr && view.layout().is_whole() && !view.is_shard(),
                 "optimizer ", name(), ": parameter \"", view.name(),
                 "\" is a shard or a buffer, whose gradient does not come out of backward; call "
                 "step() instead");
  }
  FusedStep step(*this);
  const Tensor loss_grad =
      Tensor::Full(loss.shape(), loss.dtype(), step_options().loss_scale, loss.context());
  if (step.needs_norms()) {
    const ScopedGradHooks hooks(
        *this, [&](const ParamView& view, int) { step.AddNorm(view, view.grad()); });
    autograd::Backward(loss, {.grad = loss_grad, .retain_graph = true});
    step.Decide();
  }
  if (!step.skip()) {
    const ScopedGradHooks hooks(*this, [&](ParamView& view, int group) {
      const ActiveParam param{&view, group, view.grad()};
      step.Update(std::span(&param, 1));
    });
    autograd::Backward(loss, {.grad = loss_grad});
  }
  step.Finish();
}

}  // namespace apogee::optim
