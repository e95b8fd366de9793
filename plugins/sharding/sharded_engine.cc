// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/sharding/sharded_engine.h"

#include <algorithm>
#include <map>
#include <utility>

#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"

namespace apogee {

void ShardedEngine::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  DataParallelEngine::Check(model, optimizer);
  CheckTakesMeans(plugin_, optimizer);
  CheckShardable(plugin_, optimizer);
  for (const optim::ParamView& view : optimizer.views()) {
    APOGEE_CHECK(!view.sharded() || is_cut(), plugin_, ": parameter \"", view.name(),
                 "\" of optimizer ", optimizer.name(),
                 " is a shard already; an optimizer can be boosted once");
  }
  APOGEE_CHECK(!model.Parameters().empty(), plugin_, ": the model has no parameters");
}

std::vector<autograd::ParameterPtr> ShardedEngine::Choose(const nn::Module& model,
                                                          optim::Optimizer& optimizer) {
  std::map<const autograd::Parameter*, optim::ParamView*> view_of;
  for (optim::ParamView& view : optimizer.views()) view_of[view.parameter().get()] = &view;
  std::vector<autograd::ParameterPtr> all = HeldParameters(model), frozen;
  std::ranges::reverse(all);  // backward completes the last layers' gradients first
  for (const autograd::ParameterPtr& parameter : all) {
    const auto found = view_of.find(parameter.get());
    const bool held = found != view_of.end(), trainable = parameter->requires_grad();
    if (!trainable && (held || shards_frozen())) frozen.push_back(parameter);
    if (trainable ? held : shards_frozen()) {
      sharded_.push_back(parameter);
      views_.push_back(held ? found->second : nullptr);
      continue;
    }
    if (!held) unheld_.push_back(parameter);
    // Before chunks are made. PlaceValues converts the others, once it has made them equal.
    if (!shards_frozen()) ConvertParameter(dtype_, *parameter);
  }
  return frozen;
}

std::vector<int64_t> ShardedEngine::CutMultiples(const optim::Optimizer& optimizer) const {
  std::map<const optim::ParamView*, int64_t> of_view = {{nullptr, 1}};
  optimizer.ForEachView([&](const optim::ParamView& view, int group) {
    of_view[&view] = optimizer.CutMultiple(view, group);
  });
  std::vector<int64_t> multiples;
  for (const optim::ParamView* view : views_) multiples.push_back(of_view.at(view));
  return multiples;
}

void ShardedEngine::Bind(size_t index, const Tensor& old_value, const Tensor& shard,
                         const Layout& layout) const {
  optim::ParamView* view = views_[index];
  if (view == nullptr) return;
  const Layout before = view->layout();
  view->BindShard(shard, before.Part(layout));
  if (!view->trainable() || !NeedsMasters(dtype_) || !keep_masters_) return;
  if (view->own_master().defined()) return;
  if (old_value.dtype() != DType::kF32) return;  // the cast loses nothing
  view->set_master(view->CutToLayout(old_value, before));
}

optim::Optimizer& ShardedEngine::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  Check(model, optimizer);
  MakeEqual(model, optimizer);
  std::vector<autograd::ParameterPtr> frozen = Choose(model, optimizer);
  const std::vector<chunk::ChunkSpec> plan = Plan(model, CutMultiples(optimizer));
  PlaceValues(model, plan);
  for (const autograd::ParameterPtr& parameter : sharded_) ConvertParameter(dtype_, *parameter);
  shards_ =
      std::make_unique<ShardGradients>(plugin_, optimizer, sharded_, views_, std::move(frozen));
  gradients_ = std::make_unique<chunk::GradientChunks>(
      sharded_, plan, group_, GradientOptions(optimizer),
      [this](size_t index, const Tensor& mean) { OnMean(index, mean); });
  // Another optimizer, unknown to the plugin, may step on the rest.
  unheld_gradients_ = std::make_unique<chunk::GradientChunks>(
      unheld_, group_,
      chunk::GradientChunkOptions{
          .chunk_bytes = training_.bucket_bytes, .overlap = false, .key_of = cut_.bucket_key});
  SumStatistics(optimizer, group_);
  AttachTo(optimizer);
  return optimizer;
}

void ShardedEngine::BeforeStep(optim::Optimizer& /*optimizer*/) {
  shards_->CheckNoneFromElsewhere();
}

void ShardedEngine::Reduce(const std::function<void()>& backward, const chunk::GradientPass& pass) {
  chunk::GradientChunks* const all[] = {gradients_.get(), unheld_gradients_.get()};
  chunk::GradientChunks::Run(all, backward, pass);
}

bool ShardedEngine::BeginBackward() {
  shards_->CheckFrozen();
  return DataParallelEngine::BeginBackward();
}

void ShardedEngine::RunPass(const std::function<void()>& backward,
                            const chunk::GradientPass& pass) {
  shards_->Backward(*gradients_, [&] { Reduce(backward, pass); });
}

}  // namespace apogee
