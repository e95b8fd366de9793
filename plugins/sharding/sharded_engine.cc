// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/sharding/sharded_engine.h"

#include <algorithm>
#include <map>
#include <utility>

#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee {

void ShardedEngine::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  DataParallelEngine::Check(model, optimizer);
  CheckTakesMeans(plugin_, optimizer);
  CheckShardable(plugin_, optimizer);
  APOGEE_CHECK(!model.Parameters().empty(), plugin_, ": the model has no parameters");
}

void ShardedEngine::Choose(const nn::Module& model, optim::Optimizer& optimizer) {
  std::map<const autograd::Parameter*, optim::ParamView*> view_of;
  for (optim::ParamView& view : optimizer.views()) view_of[view.parameter().get()] = &view;
  std::vector<autograd::ParameterPtr> all = HeldParameters(model);
  std::ranges::reverse(all);  // backward completes the last layers' gradients first
  for (const autograd::ParameterPtr& parameter : all) {
    const auto found = view_of.find(parameter.get());
    const bool held = found != view_of.end(), trainable = parameter->requires_grad();
    if (!trainable && (held || shards_frozen())) frozen_.push_back(parameter);
    if (trainable ? held : shards_frozen()) {
      sharded_.push_back({parameter, held ? found->second : nullptr});
      continue;
    }
    if (!held) {
      unheld_.push_back(parameter);
    } else if (is_cut()) {
      found->second->BindParameter(PartOf(*parameter));
    }
    // Before chunks are made. PlaceValues converts the others, once it has made them equal.
    if (!shards_frozen()) ConvertParameter(dtype_, *parameter);
  }
}

std::vector<autograd::ParameterPtr> ShardedEngine::Parameters() const {
  std::vector<autograd::ParameterPtr> parameters;
  for (const Sharded& sharded : sharded_) parameters.push_back(sharded.parameter);
  return parameters;
}

std::vector<int64_t> ShardedEngine::CutMultiples(const optim::Optimizer& optimizer) const {
  const optim::OptimizerTraits traits = optimizer.traits();
  std::map<const optim::ParamView*, int64_t> of_view = {{nullptr, 1}};
  optimizer.ForEachView([&](const optim::ParamView& view, int group) {
    of_view[&view] = traits.Of(view, group).cut_multiple;
  });
  std::vector<int64_t> multiples;
  for (const Sharded& sharded : sharded_) multiples.push_back(of_view.at(sharded.view));
  return multiples;
}

void ShardedEngine::Bind(size_t index, const Tensor& old_value, const Tensor& shard,
                         const Layout& layout) const {
  optim::ParamView* view = sharded_[index].view;
  if (view == nullptr) return;
  const Layout part = PartOf(*view->parameter());
  view->BindShard(shard, part.Part(layout));
  if (!view->trainable() || !NeedsMasters(dtype_) || !keep_masters_) return;
  if (view->own_master().defined()) return;
  if (old_value.dtype() != DType::kF32) return;  // the cast loses nothing
  view->set_master(view->CutToLayout(old_value, part));
}

optim::Optimizer& ShardedEngine::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  Check(model, optimizer);
  optimizer_ = &optimizer;
  MakeEqual(model, optimizer);
  Choose(model, optimizer);
  const std::vector<chunk::ChunkSpec> plan = Plan(model, CutMultiples(optimizer));
  PlaceValues(model, plan);
  for (const Sharded& sharded : sharded_) ConvertParameter(dtype_, *sharded.parameter);
  PlaceGradients();
  chunk::GradientChunkOptions options = GradientOptions(optimizer);
  options.listeners = optimizer.listeners();
  gradients_ = std::make_unique<chunk::GradientChunks>(
      Parameters(), plan, group_, options,
      [this](size_t index, const Tensor& mean) { OnMean(index, mean); });
  // Another optimizer, unknown to the plugin, may step on the rest.
  unheld_gradients_ = std::make_unique<chunk::GradientChunks>(
      unheld_, group_,
      chunk::GradientChunkOptions{
          .chunk_bytes = training_.bucket_bytes, .overlap = false, .key_of = cut_.bucket_key});
  SumStatistics(optimizer, group_);
  Listen();
  return optimizer;
}

void ShardedEngine::PlaceGradients() {
  for (Sharded& sharded : sharded_) {
    if (sharded.view == nullptr) continue;
    sharded.grad_place = std::make_shared<autograd::GradPlace>(autograd::GradPlace{
        .where =
            "the " + plugin_ + " plugin keeps its gradient on shards; set the plugin's max_norm",
        .on_zero_grad = [view = sharded.view, alive = optimizer_->lifetime()](bool set_to_none) {
          if (alive.expired()) return;
          if (set_to_none) {
            view->set_grad(Tensor());
          } else if (view->has_grad()) {
            view->grad().Fill(0);
          }
        }});
    sharded.parameter->set_grad_place(sharded.grad_place);
  }
}

void ShardedEngine::BeforeStep() {
  DataParallelEngine::BeforeStep();
  for (const auto& [parameter, view, place, mean] : sharded_) {
    APOGEE_CHECK(!parameter->requires_grad() || !parameter->has_grad(), plugin_, ": parameter \"",
                 parameter->name(),
                 "\" was given a gradient outside of backward, but the plugin keeps gradients on "
                 "shards; change them in a gradient hook (Parameter::AddGradHook)");
  }
}

void ShardedEngine::Reduce(const std::function<void()>& backward, const chunk::GradientPass& pass) {
  chunk::GradientChunks* const all[] = {gradients_.get(), unheld_gradients_.get()};
  chunk::GradientChunks::Run(all, backward, pass);
}

bool ShardedEngine::BeginBackward() {
  for (const autograd::ParameterPtr& parameter : frozen_) {
    APOGEE_CHECK(!parameter->requires_grad(), plugin_, ": parameter \"", parameter->name(),
                 "\" was frozen at boost, so it has no masters and states on shards, but has been "
                 "unfrozen since; unfreeze it before boost");
  }
  return DataParallelEngine::BeginBackward();
}

void ShardedEngine::RunPass(const std::function<void()>& backward,
                            const chunk::GradientPass& pass) {
  TakeMeans([&] { Reduce(backward, pass); });
}

void ShardedEngine::OnMean(size_t index, const Tensor& mean) {
  Sharded& sharded = sharded_[index];
  if (sharded.view == nullptr) return;
  if (sharded.view->has_grad()) {
    ops::Accumulate(sharded.view->grad(), mean);
  } else {
    sharded.mean = mean;
  }
}

void ShardedEngine::TakeMeans(const std::function<void()>& backward) {
  for (Sharded& sharded : sharded_) sharded.mean = Tensor();  // left by a backward that failed
  backward();
  for (size_t i = 0; i < sharded_.size(); ++i) {
    const Tensor mean = std::exchange(sharded_[i].mean, {});
    if (mean.defined() && gradients_->present(i)) sharded_[i].view->set_grad(mean);
  }
}

}  // namespace apogee
