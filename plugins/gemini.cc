#include "apogee/plugins/gemini.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "apogee/core/text.h"
#include "apogee/optim/fused_backward.h"
#include "apogee/optim/group_stat_reducer.h"
#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"

namespace apogee {
namespace {

// For a peer to come to the same gather: launch's default for any collective.
constexpr std::chrono::seconds kGatherTimeout{60};

void CheckPlacement(const std::string& policy, std::string& errors) {
  if (policy == "static") return;
  errors += "\n  " + (policy == "auto"
                          ? std::string("placement_policy \"auto\" is not there yet; use "
                                        "\"static\", which keeps everything in the model's memory")
                          : UnknownName("placement_policy", policy, {"static"}));
}

}  // namespace

GeminiPlugin::GeminiPlugin(comm::GroupPtr group, const GeminiOptions& options)
    : group_(std::move(group)), options_(options) {
  std::string errors;
  CheckPlacement(options.placement_policy, errors);
  dtype_ = ParsePrecision(options.precision, errors);
  CheckMaxNorm(options.max_norm, errors);
  if (options.chunk_bytes < 1) {
    errors += "\n  chunk_bytes must be positive, got " + std::to_string(options.chunk_bytes);
  }
  APOGEE_CHECK(errors.empty(), "gemini plugin: invalid options:", errors);
  guard_ =
      std::make_unique<StepGuard>("gemini", StepGuardOptions{.max_norm = options.max_norm,
                                                             .scale = dtype_ == DType::kF16,
                                                             .loss_scaler = options.loss_scaler});
}

void GeminiPlugin::Check(const nn::Module& model, optim::Optimizer& optimizer) const {
  APOGEE_CHECK(parameters_ == nullptr,
               "gemini: the plugin runs another model already; make one plugin per model");
  CheckWhole("gemini", model);
  CheckTakesMeans("gemini", optimizer);
  CheckShardable("gemini", optimizer);
  for (const optim::ParamView& view : optimizer.views()) {
    APOGEE_CHECK(!view.sharded(), "gemini: parameter \"", view.name(), "\" of optimizer ",
                 optimizer.name(), " is a shard already; an optimizer can be boosted once");
  }
  CheckPrecision(dtype_, optimizer);
  APOGEE_CHECK(!model.Parameters().empty(), "gemini: the model has no parameters");
}

void GeminiPlugin::Choose(const nn::Module& model, optim::Optimizer& optimizer) {
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
  shards_ = std::make_unique<ShardGradients>("gemini", sharded_, views_, std::move(frozen));
}

// Chunks of one module each, so that nothing is gathered but what a module needs.
std::vector<chunk::ChunkSpec> GeminiPlugin::Plan(nn::Module& model,
                                                 optim::Optimizer& optimizer) const {
  std::map<const optim::ParamView*, int64_t> cut_multiple;
  optimizer.ForEachView([&](const optim::ParamView& view, int group) {
    cut_multiple[&view] = optimizer.CutMultiple(view, group);
  });
  std::map<const autograd::Parameter*, int> owner;
  std::vector<nn::Module*> modules = model.Modules();
  for (size_t m = 0; m < modules.size(); ++m) {  // parents first: the last one is the owner
    for (const auto& parameter : modules[m]->Parameters()) {
      owner[parameter.get()] = static_cast<int>(m);
    }
  }
  std::vector<chunk::ChunkRequest> requests;
  for (size_t i = 0; i < sharded_.size(); ++i) {
    requests.push_back(
        {.numel = sharded_[i]->shape().numel(),
         .element_bytes = DTypeSize(dtype_),
         .key = 2 * owner.at(sharded_[i].get()) + (sharded_[i]->requires_grad() ? 0 : 1),
         .cut_multiple = views_[i] != nullptr ? cut_multiple.at(views_[i]) : 1});
  }
  return chunk::PlanChunks(requests, {.chunk_bytes = options_.chunk_bytes,
                                      .num_shards = comm::GroupSize(group_),
                                      .distinct_sizes = true});
}

// The shard's masters keep what rounding to the working dtype drops.
void GeminiPlugin::Bind(size_t index, const Tensor& old_value, const Tensor& shard,
                        const comm::Layout& layout) const {
  optim::ParamView* view = views_[index];
  if (view == nullptr) return;
  const comm::Layout before = view->layout();
  view->BindShard(shard, layout);
  if (!view->trainable() || !NeedsMasters(dtype_) || view->own_master().defined()) return;
  if (old_value.dtype() != DType::kF32) return;  // the cast loses nothing
  view->set_master(view->CutToLayout(old_value, before));
}

void GeminiPlugin::ReduceGradients(const std::vector<chunk::ChunkSpec>& plan,
                                   optim::Optimizer& optimizer) {
  // Inside backward ranks also meet in gathers.
  chunk::GradientChunkOptions options{.wait_inside = false};
  if (dynamic_cast<optim::FusedBackwardOptimizer*>(&optimizer) != nullptr) {
    fused_ = std::make_unique<FusedShards>(optimizer, views_, unheld_);
    options.on_chunk = [this] { fused_->OnChunk(); };
  }
  gradients_ = std::make_unique<chunk::GradientChunks>(
      sharded_, plan, group_, options, [this](size_t index, const Tensor& mean) {
        fused_ != nullptr ? fused_->OnMean(index, mean) : shards_->OnMean(index, mean);
      });
  unheld_gradients_ = std::make_unique<chunk::GradientChunks>(
      unheld_, group_,
      chunk::GradientChunkOptions{.chunk_bytes = options_.chunk_bytes, .overlap = false});
}

optim::Optimizer& GeminiPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  Check(model, optimizer);
  PrepareReplicas("gemini", model, optimizer, group_);
  Choose(model, optimizer);
  const std::vector<chunk::ChunkSpec> plan = Plan(model, optimizer);
  parameters_ = chunk::ShardedParameters::Make(
      sharded_, plan, group_ != nullptr ? group_->Duplicate(kGatherTimeout) : nullptr, dtype_,
      [this](size_t i, const Tensor& old_value, const Tensor& shard, const comm::Layout& layout) {
        Bind(i, old_value, shard, layout);
      });
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    ConvertParameter(dtype_, *parameter);
  }
  windows_ = std::make_unique<ModuleWindows>("gemini", model, parameters_);
  ReduceGradients(plan, optimizer);
  optim::SumStatistics(optimizer, group_);
  guard_->Attach(optimizer);
  optimizer.AddPreStepHook([this](optim::Optimizer&) {
    parameters_->CheckReleased();
    shards_->CheckNoneFromElsewhere();
  });
  return optimizer;
}

size_t GeminiPlugin::IndexOf(const autograd::Parameter& parameter) const {
  const auto found = std::ranges::find(sharded_, &parameter, &autograd::ParameterPtr::get);
  return static_cast<size_t>(found - sharded_.begin());
}

comm::Layout GeminiPlugin::LayoutOf(const autograd::Parameter& parameter) const {
  const size_t index = IndexOf(parameter);
  return index < sharded_.size() ? parameters_->LayoutOf(index) : comm::Layout(parameter.shape());
}

Tensor GeminiPlugin::WholeValue(const autograd::Parameter& parameter) const {
  const size_t index = IndexOf(parameter);
  if (index == sharded_.size()) return parameter.data().Clone();
  const size_t chunk = parameters_->ChunkOf(index);
  parameters_->Acquire(chunk);
  const Tensor whole = parameter.data().Clone();
  parameters_->Release(chunk);
  return whole;
}

void GeminiPlugin::Backward(const Tensor& loss, optim::Optimizer&) {
  if (fused_ != nullptr) return FusedBackward(loss);
  chunk::GradientChunks* const all[] = {gradients_.get(), unheld_gradients_.get()};
  shards_->Backward(*gradients_, [&] {
    const bool reduce = guard_->OnBackward();
    windows_->Backward([&] { chunk::GradientChunks::Backward(all, loss, loss_scale(), reduce); });
  });
}

void GeminiPlugin::FusedBackward(const Tensor& loss) {
  guard_->OnBackward();
  struct End {
    StepGuard* guard;
    ~End() {
      if (guard != nullptr) guard->ForgetBackward();
    }
  } end{guard_.get()};
  chunk::GradientChunks* const all[] = {gradients_.get(), unheld_gradients_.get()};
  shards_->Backward(*gradients_, [&] {
    fused_->Backward(loss_scale(), [&](FusedShards::Walk walk) {
      unheld_gradients_->set_reduces(!walk.again);
      const auto backward = [&] {
        chunk::GradientChunks::Backward(all, loss, loss_scale(), /*reduce=*/true,
                                        walk.retain_graph);
      };
      windows_->Backward(backward, [&] { gradients_->Agree(); });
    });
  });
  end.guard = nullptr;
}

}  // namespace apogee
