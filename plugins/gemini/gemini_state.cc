// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/gemini/gemini_state.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/optim/core/options_agreement.h"
#include "apogee/optim/step/fused_backward.h"
#include "apogee/plugins/gemini/module_chunks.h"
#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"

namespace apogee {
namespace {

// How long to wait for a peer at a gather: launch's default for any collective.
constexpr std::chrono::seconds kGatherTimeout{60};

}  // namespace

GeminiPlugin::State::State(comm::GroupPtr group, const TrainingOptions& training,
                           const GeminiOptions& options, const CutParameters& cut)
    : group_(std::move(group)),
      training_(training),
      options_(options),
      cut_(cut),
      dtype_(DTypeOf(training.precision)) {
  std::string errors;
  CheckPlacement(options.placement, errors);
  CheckTrainingOptions(training, errors);
  if (!training.overlap) {
    errors +=
        "\n  overlap must be true: gradients are reduced and freed while backward is running; "
        "ddp and low_level_zero also run without";
  }
  APOGEE_CHECK(errors.empty(), "gemini plugin: invalid options:", errors);
  guard_ = std::make_unique<StepGuard>("gemini", training);
}

void GeminiPlugin::State::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  APOGEE_CHECK(parameters_ == nullptr,
               "gemini: the plugin runs another model already; make one plugin per model");
  const bool cut_before = cut_.statistics_group != nullptr;
  if (!cut_before) CheckWhole("gemini", model);
  CheckTakesMeans("gemini", optimizer);
  CheckShardable("gemini", optimizer);
  for (const optim::ParamView& view : optimizer.views()) {
    APOGEE_CHECK(!view.sharded() || cut_before, "gemini: parameter \"", view.name(),
                 "\" of optimizer ", optimizer.name(),
                 " is a shard already; an optimizer can be boosted once");
  }
  CheckPrecision(dtype_, optimizer);
  const bool fused = dynamic_cast<const optim::FusedBackwardOptimizer*>(&optimizer) != nullptr;
  APOGEE_CHECK(!fused || (options_.placement.shard_param_frac == 1 &&
                          options_.placement.max_gathered_bytes == 0),
               "gemini: optimizer ", optimizer.name(),
               " updates shards inside backward, so that no values can stay whole until a step's "
               "end; with it shard_param_frac must be 1 (it is ",
               options_.placement.shard_param_frac, ") and max_gathered_bytes 0 (it is ",
               options_.placement.max_gathered_bytes, ")");
  APOGEE_CHECK(!model.Parameters().empty(), "gemini: the model has no parameters");
  for (const auto& [name, module] : model.NamedModules()) {
    APOGEE_CHECK(!module->has_wrapped_forward(), "gemini: the forward of module \"", name,
                 "\" has been wrapped before (nn::Module::WrapForward), so windows cannot be put "
                 "around it; a model can be boosted once");
  }
}

void GeminiPlugin::State::Choose(const nn::Module& model, optim::Optimizer& optimizer) {
  std::map<const autograd::Parameter*, optim::ParamView*> view_of;
  for (optim::ParamView& view : optimizer.views()) view_of[view.parameter().get()] = &view;
  std::vector<autograd::ParameterPtr> all = model.Parameters(), frozen;
  std::ranges::reverse(all);  // backward completes the last layers' gradients first
  for (const autograd::ParameterPtr& parameter : all) {
    const auto found = view_of.find(parameter.get());
    const bool held = found != view_of.end();
    if (!held && parameter->requires_grad()) {
      unheld_.push_back(parameter);
      continue;
    }
    if (!parameter->requires_grad()) frozen.push_back(parameter);
    sharded_.push_back(parameter);
    views_.push_back(held ? found->second : nullptr);
  }
  shards_ =
      std::make_unique<ShardGradients>("gemini", optimizer, sharded_, views_, std::move(frozen));
}

std::vector<chunk::ChunkSpec> GeminiPlugin::State::Plan(nn::Module& model,
                                                        optim::Optimizer& optimizer) const {
  std::map<const optim::ParamView*, int64_t> cut_multiple;
  optimizer.ForEachView([&](const optim::ParamView& view, int group) {
    cut_multiple[&view] = optimizer.CutMultiple(view, group);
  });
  std::vector<int64_t> multiples;
  for (const optim::ParamView* view : views_) {
    multiples.push_back(view != nullptr ? cut_multiple.at(view) : 1);
  }
  return PlanModuleChunks(model, sharded_,
                          {.num_shards = comm::GroupSize(group_),
                           .element_bytes = DTypeSize(dtype_),
                           .chunk_bytes = training_.bucket_bytes,
                           .cut_multiples = std::move(multiples)});
}

// The shard's masters keep the bits that rounding to the working dtype drops.
void GeminiPlugin::State::Bind(size_t index, const Tensor& old_value, const Tensor& shard,
                               const Layout& layout) const {
  optim::ParamView* view = views_[index];
  if (view == nullptr) return;
  const Layout before = view->layout();
  view->BindShard(shard, before.Part(layout));
  if (!view->trainable() || !NeedsMasters(dtype_) || view->own_master().defined()) return;
  if (old_value.dtype() != DType::kF32) return;  // the cast loses nothing
  view->set_master(view->CutToLayout(old_value, before));
}

void GeminiPlugin::State::ReduceGradients(const std::vector<chunk::ChunkSpec>& plan,
                                          optim::Optimizer& optimizer) {
  // Inside backward ranks also meet in gathers, so waiting there could deadlock.
  chunk::GradientChunkOptions options{
      .wait_inside = false, .context_of = [this](size_t chunk, int64_t bytes) {
        return homes_->GradientHome(chunk, bytes, parameters_->schedule());
      }};
  if (dynamic_cast<optim::FusedBackwardOptimizer*>(&optimizer) != nullptr) {
    fused_ = std::make_unique<FusedShards>(optimizer, views_, unheld_);
    options.on_chunk = [this] { fused_->OnChunk(); };
    // Without a norm there is no first walk in which ranks compare options.
    options.agreement = {
        .digest = [&optimizer] { return optimizer.OptionsDigest(); },
        .on_difference = [&optimizer,
                          this] { optim::ThrowOptionsDiffer(optimizer, group_.get()); }};
  }
  gradients_ = std::make_unique<chunk::GradientChunks>(
      sharded_, plan, group_, options, [this](size_t index, const Tensor& mean) {
        fused_ != nullptr ? fused_->OnMean(index, mean) : shards_->OnMean(index, mean);
      });
  unheld_gradients_ = std::make_unique<chunk::GradientChunks>(
      unheld_, group_,
      chunk::GradientChunkOptions{.chunk_bytes = training_.bucket_bytes, .overlap = false});
}

// Gives every rank rank 0's value. No rank has allocated a lazy one until now.
void GeminiPlugin::State::TakeValue(autograd::Parameter& parameter) const {
  // Cached blocks of earlier values, of all sizes, would add up to a whole model.
  if (parameter.is_lazy()) parameter.context()->allocator().ReleaseCache();
  SyncValue(parameter, group_);
}

optim::Optimizer& GeminiPlugin::State::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  Check(model, optimizer);
  PrepareReplicasButValues("gemini", model, optimizer, group_);
  Choose(model, optimizer);
  const std::vector<chunk::ChunkSpec> plan = Plan(model, optimizer);
  const ContextPtr device = model.Parameters()[0]->context();
  MakeHomes(plan, device);
  for (const autograd::ParameterPtr& parameter : unheld_) SyncValue(*parameter, group_);
  parameters_ = chunk::ShardedParameters::Make(
      sharded_, plan,
      {.group = group_ != nullptr ? group_->Duplicate(kGatherTimeout) : nullptr,
       .dtype = dtype_,
       .homes = homes_->parameter_homes(),
       .keep = homes_->keep(),
       .before_move = [this](size_t index) { TakeValue(*sharded_[index]); }},
      [this](size_t i, const Tensor& old_value, const Tensor& shard, const Layout& layout) {
        Bind(i, old_value, shard, layout);
      });
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    ConvertParameter(dtype_, *parameter);
  }
  parameters_->schedule().set_capacity_bytes(options_.placement.max_gathered_bytes);
  device->allocator().ReleaseCache();  // the whole values' blocks
  record_ = std::make_unique<ChunkRecord>(parameters_);
  windows_ = ModuleWindows::Make("gemini", model, parameters_);
  ReduceGradients(plan, optimizer);
  const bool cut_before = cut_.statistics_group != nullptr;
  optim::SumStatistics(optimizer, cut_before ? cut_.statistics_group : group_);
  guard_->Attach(optimizer);
  hooks_.emplace_back(optimizer.AddPreStepHook([this](optim::Optimizer&) {
    shards_->CheckNoneFromElsewhere();
    homes_->ReadAhead();
  }));
  hooks_.emplace_back(optimizer.AddStepHook([this](optim::Optimizer& stepped) {
    parameters_->ValuesChanged();
    record_->EndStep();
    homes_->WriteBack();
    if (homes_->is_unsettled()) Settle(stepped);
  }));
  LimitDevice(model);
  return optimizer;
}

void GeminiPlugin::State::MakeHomes(const std::vector<chunk::ChunkSpec>& plan,
                                    const ContextPtr& device) {
  std::vector<int64_t> bytes;
  for (const chunk::ChunkSpec& chunk : plan) bytes.push_back(chunk.numel() * DTypeSize(dtype_));
  homes_ = std::make_unique<ChunkHomes>(options_.placement, bytes, device);
  for (size_t c = 0; c < plan.size(); ++c) {
    for (const chunk::ChunkItem& item : plan[c].items) {
      optim::ParamView* view = views_[item.parameter];
      if (view != nullptr) view->set_state_context(homes_->optimizer_home(c));
    }
  }
}

void GeminiPlugin::State::LimitDevice(nn::Module& model) {
  int64_t largest = 0;
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    if (!parameter->requires_grad()) continue;
    largest = std::max(largest, parameter->shape().numel() * DTypeSize(parameter->grad_dtype()));
  }
  homes_->LimitDevice(windows_->LargestGatheredBytes(model), largest);
}

// Computes the bytes that each chunk needs on the device besides its shard.
void GeminiPlugin::State::Settle(const optim::Optimizer& optimizer) {
  std::map<const optim::ParamView*, int64_t> state_bytes;
  optimizer.ForEachView([&](const optim::ParamView& view, int group) {
    const bool master = view.trainable() && view.needs_master();
    state_bytes[&view] = optimizer.PlannedStateBytes(view, group) +
                         (master ? view.value().numel() * DTypeSize(view.compute_dtype()) : 0);
  });
  const std::vector<chunk::ChunkSpec>& plan = parameters_->plan();
  std::vector<ChunkHomes::ChunkData> chunks(plan.size());
  for (size_t c = 0; c < plan.size(); ++c) {
    bool trainable = false;
    for (const chunk::ChunkItem& item : plan[c].items) {
      optim::ParamView* view = views_[item.parameter];
      chunks[c].views.push_back(view);
      trainable = trainable || sharded_[item.parameter]->requires_grad();
      if (view != nullptr) chunks[c].optimizer_bytes += state_bytes.at(view);
    }
    if (!trainable) continue;
    const int64_t grad_bytes = DTypeSize(sharded_[plan[c].items[0].parameter]->grad_dtype());
    chunks[c].gradient_bytes = plan[c].shard_numel * grad_bytes;
  }
  // With updates inside backward, values that stay whole would be outdated.
  homes_->Settle(*parameters_, chunks, /*keep_gathered=*/fused_ == nullptr);
}

size_t GeminiPlugin::State::IndexOf(const autograd::Parameter& parameter) const {
  const auto found = std::ranges::find(sharded_, &parameter, &autograd::ParameterPtr::get);
  return static_cast<size_t>(found - sharded_.begin());
}

Layout GeminiPlugin::State::LayoutOf(const autograd::Parameter& parameter) const {
  const size_t index = IndexOf(parameter);
  return index < sharded_.size() ? parameters_->LayoutOf(index) : Layout(parameter.shape());
}

Tensor GeminiPlugin::State::WholeValue(const autograd::Parameter& parameter) const {
  const size_t index = IndexOf(parameter);
  if (index == sharded_.size()) return parameter.data().Clone();
  return parameters_->WholeValue(index);
}

void GeminiPlugin::State::Backward(const Tensor& loss) {
  if (fused_ != nullptr) return FusedBackward(loss);
  chunk::GradientChunks* const all[] = {gradients_.get(), unheld_gradients_.get()};
  shards_->Backward(*gradients_, [&] {
    const bool reduce = guard_->OnBackward();
    windows_->Backward(
        [&] { chunk::GradientChunks::Backward(all, loss, guard_->loss_scale(), reduce); });
  });
}

void GeminiPlugin::State::FusedBackward(const Tensor& loss) {
  guard_->OnBackward();
  struct End {
    StepGuard* guard;
    ~End() {
      if (guard != nullptr) guard->ForgetBackward();
    }
  } end{guard_.get()};
  chunk::GradientChunks* const all[] = {gradients_.get(), unheld_gradients_.get()};
  shards_->Backward(*gradients_, [&] {
    fused_->Backward(guard_->loss_scale(), [&](FusedShards::Walk walk) {
      unheld_gradients_->set_reduces(!walk.again);
      const auto backward = [&] {
        chunk::GradientChunks::Backward(all, loss, guard_->loss_scale(), /*reduce=*/true,
                                        walk.retain_graph);
      };
      windows_->Backward(backward, [&] { gradients_->Agree(); });
    });
  });
  end.guard = nullptr;
}

}  // namespace apogee
