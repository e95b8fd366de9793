// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/sharding/shard_gradients.h"

#include <algorithm>
#include <utility>

#include "apogee/tensor/ops/elementwise.h"

namespace apogee {

ShardGradients::ShardGradients(std::string plugin, const optim::Optimizer& optimizer,
                               std::vector<autograd::ParameterPtr> parameters,
                               std::vector<optim::ParamView*> views,
                               std::vector<autograd::ParameterPtr> frozen)
    : plugin_(std::move(plugin)),
      parameters_(std::move(parameters)),
      views_(std::move(views)),
      frozen_(std::move(frozen)),
      means_(views_.size()) {
  for (size_t i = 0; i < views_.size(); ++i) {
    if (views_[i] == nullptr) continue;
    places_.push_back(std::make_shared<autograd::GradPlace>(autograd::GradPlace{
        .where =
            "the " + plugin_ + " plugin keeps its gradient on shards; set the plugin's max_norm",
        .on_zero_grad = [view = views_[i], alive = optimizer.lifetime()](bool set_to_none) {
          if (alive.expired()) return;
          if (set_to_none) {
            view->set_grad(Tensor());
          } else if (view->has_grad()) {
            view->grad().Fill(0);
          }
        }}));
    parameters_[i]->set_grad_place(places_.back());
  }
}

void ShardGradients::OnMean(size_t index, const Tensor& mean) {
  optim::ParamView* view = views_[index];
  if (view == nullptr) return;
  if (view->has_grad()) {
    ops::Accumulate(view->grad(), mean);
  } else {
    means_[index] = mean;
  }
}

void ShardGradients::CheckFrozen() const {
  for (const autograd::ParameterPtr& parameter : frozen_) {
    APOGEE_CHECK(!parameter->requires_grad(), plugin_, ": parameter \"", parameter->name(),
                 "\" was frozen at boost, so it has no masters and states on shards, but has been "
                 "unfrozen since; unfreeze it before boost");
  }
}

void ShardGradients::Backward(const chunk::GradientChunks& gradients,
                              const std::function<void()>& backward) {
  std::ranges::fill(means_, Tensor());  // left by a backward that failed
  backward();
  for (size_t i = 0; i < views_.size(); ++i) {
    const Tensor mean = std::exchange(means_[i], {});
    if (mean.defined() && gradients.present(i)) views_[i]->set_grad(mean);
  }
}

void ShardGradients::CheckNoneFromElsewhere() const {
  for (const autograd::ParameterPtr& parameter : parameters_) {
    APOGEE_CHECK(!parameter->requires_grad() || !parameter->has_grad(), plugin_, ": parameter \"",
                 parameter->name(),
                 "\" was given a gradient outside of backward, but the plugin keeps gradients on "
                 "shards; change them in a gradient hook (Parameter::AddGradHook)");
  }
}

}  // namespace apogee
