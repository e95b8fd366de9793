// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/sharding/fused_shards.h"

#include <algorithm>
#include <utility>

namespace apogee {

FusedShards::FusedShards(optim::Optimizer& optimizer, std::vector<autograd::ParameterPtr> others)
    : optimizer_(optimizer), others_(std::move(others)) {
  optimizer.ForEachView(
      [this](const optim::ParamView& view, int group) { groups_[&view] = group; });
}

void FusedShards::OnMean(optim::ParamView& view, const Tensor& mean) {
  if (updates_) {
    params_.push_back({&view, groups_.at(&view), mean});
  } else {
    step_->AddNorm(view, mean);
  }
}

void FusedShards::OnChunk(optim::StatReducer* reducer) {
  std::vector<optim::ActiveParam> params = std::exchange(params_, {});
  std::ranges::stable_sort(params, {}, &optim::ActiveParam::group);
  step_->Update(params, reducer);
}

void FusedShards::Backward(const std::function<void(Walk)>& backward) {
  struct End {  // also when backward throws
    FusedShards* self;
    ~End() {
      self->step_.reset();
      self->params_.clear();
    }
  } end{this};
  step_.emplace(optimizer_);
  updates_ = !step_->needs_norms();
  if (updates_) {
    backward({});
  } else {
    backward({.retain_graph = true});
    step_->Decide();
    updates_ = true;
    if (!step_->skip()) {
      std::vector<Tensor> kept;
      for (const autograd::ParameterPtr& other : others_) {
        kept.push_back(other->grad());
        other->set_grad(Tensor());
      }
      backward({.again = true});
      for (size_t i = 0; i < others_.size(); ++i) others_[i]->set_grad(kept[i]);
    }
  }
  step_->Finish();
}

}  // namespace apogee
