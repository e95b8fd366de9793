// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/sharding/gathered_engine.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/optim/core/options_agreement.h"
#include "apogee/plugins/precision.h"

namespace apogee {
namespace {

// How long to wait for a peer at a gather: launch's default for any collective.
constexpr std::chrono::seconds kGatherTimeout{60};

comm::GroupPtr ForGathers(const comm::GroupPtr& group) {
  return group != nullptr ? group->Duplicate(kGatherTimeout) : nullptr;
}

std::string Problems(const TrainingOptions& training, const GeminiOptions& options) {
  std::string problems;
  CheckPlacement(options.placement, problems);
  if (!training.overlap) {
    problems +=
        "\n  overlap must be true: gradients are reduced and freed while backward is running; "
        "ddp and low_level_zero also run without";
  }
  return problems;
}

}  // namespace

GatheredEngine::GatheredEngine(comm::GroupPtr group, const TrainingOptions& training,
                               const GeminiOptions& options, const CutParameters& cut)
    : ShardedEngine("gemini", std::move(group), training, cut, Problems(training, options)),
      options_(options),
      expert_statistics_(cut.expert_statistics) {}

void GatheredEngine::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  ShardedEngine::Check(model, optimizer);
  const bool fused = optimizer.traits().fused_backward;
  APOGEE_CHECK(!fused || (options_.placement.shard_param_frac == 1 &&
                          options_.placement.max_gathered_bytes == 0),
               plugin_, ": optimizer ", optimizer.name(),
               " updates shards inside backward, so that no values can stay whole until a step's "
               "end; with it shard_param_frac must be 1 (it is ",
               options_.placement.shard_param_frac, ") and max_gathered_bytes 0 (it is ",
               options_.placement.max_gathered_bytes, ")");
  for (const auto& [name, module] : model.NamedModules()) {
    APOGEE_CHECK(!module->has_wrapped_forward(), plugin_, ": the forward of module \"", name,
                 "\" has been wrapped before (nn::Module::WrapForward), so windows cannot be put "
                 "around it; a model can be boosted once");
  }
}

std::vector<chunk::ChunkSpec> GatheredEngine::Plan(nn::Module& model, const Share& share) const {
  std::vector<int64_t> cut_multiples, element_bytes;
  for (size_t i = share.first; i < share.first + share.count; ++i) {
    cut_multiples.push_back(sharded_[i].cut_multiple);
    element_bytes.push_back(DTypeSize(policy_.Of(*sharded_[i].parameter)));
  }
  return PlanModuleChunks(model, Parameters(share),
                          {.num_shards = comm::GroupSize(share.group),
                           .chunk_bytes = training_.bucket_bytes,
                           .element_bytes = std::move(element_bytes),
                           .cut_multiples = std::move(cut_multiples)});
}

void GatheredEngine::PlaceValues(nn::Module& model,
                                 const std::vector<std::vector<chunk::ChunkSpec>>& plans) {
  const ContextPtr device = model.Parameters()[0]->context();
  std::vector<autograd::ParameterPtr> parameters;
  for (const Sharded& sharded : sharded_) parameters.push_back(sharded.parameter);
  // The chunks of all shares, in one plan: their parameters are numbered as in sharded_.
  std::vector<chunk::ChunkSpec> plan;
  std::vector<DType> dtypes;
  std::vector<comm::GroupPtr> groups;
  const comm::GroupPtr all = ForGathers(group_);
  for (size_t i = 0; i < shares_.size(); ++i) {
    const Share& share = shares_[i];
    const comm::GroupPtr group = share.group == group_ ? all : ForGathers(share.group);
    std::ranges::copy(DTypesOf(share, plans[i]), std::back_inserter(dtypes));
    for (chunk::ChunkSpec spec : plans[i]) {
      for (chunk::ChunkItem& item : spec.items) item.parameter += share.first;
      plan.push_back(std::move(spec));
      groups.push_back(group);
    }
  }
  MakeHomes(plan, dtypes, device);
  for (const autograd::ParameterPtr& parameter : unheld_) TakeValue(*parameter);
  parameters_ = chunk::ShardedParameters::Make(
      std::move(parameters), plan,
      {.group = all,
       .chunk_groups = groups,
       .dtypes = dtypes,
       .homes = homes_->parameter_homes(),
       .keep = homes_->keep(),
       .before_move = [this](size_t index) { TakeValue(*sharded_[index].parameter); },
       .listeners = optimizer_->listeners()},
      [this](size_t i, const Tensor& old_value, const Tensor& shard, const Layout& layout) {
        Bind(i, old_value, shard, layout);
      });
  for (const autograd::ParameterPtr& parameter : unheld_) {
    ConvertParameter(policy_.Of(*parameter), *parameter);
  }
  parameters_->schedule().set_capacity_bytes(options_.placement.max_gathered_bytes);
  device->allocator().ReleaseCache();  // the whole values' blocks
  windows_ = ModuleWindows::Make(plugin_, model, parameters_);
}

chunk::GradientChunkOptions GatheredEngine::GradientOptions(optim::Optimizer& optimizer,
                                                            const Share& share) {
  // Inside backward ranks also meet in gathers, so waiting there could deadlock.
  chunk::GradientChunkOptions options{
      .wait_inside = false,
      .context_of = [this, first = share.first_chunk](size_t chunk, int64_t bytes) {
        return homes_->GradientHome(first + chunk, bytes, parameters_->schedule());
      }};
  if (!optimizer.traits().fused_backward) return options;
  if (fused_ == nullptr) fused_ = std::make_unique<FusedShards>(optimizer, unheld_);
  options.on_chunk = [this, experts = share.is_experts] {
    fused_->OnChunk(experts ? &expert_statistics_ : nullptr);
  };
  // Without a norm there is no first walk in which ranks compare options.
  options.agreement = {
      .digest = [&optimizer] { return optimizer.OptionsDigest(); },
      .on_difference = [&optimizer, this] { optimizer.ThrowOptionsDiffer(group_.get()); }};
  return options;
}

optim::Optimizer& GatheredEngine::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  ShardedEngine::Configure(model, optimizer);
  LimitDevice(model);
  return optimizer;
}

void GatheredEngine::MakeHomes(const std::vector<chunk::ChunkSpec>& plan,
                               const std::vector<DType>& dtypes, const ContextPtr& device) {
  std::vector<int64_t> bytes;
  for (size_t c = 0; c < plan.size(); ++c) bytes.push_back(plan[c].numel() * DTypeSize(dtypes[c]));
  homes_ = std::make_unique<ChunkHomes>(options_.placement, bytes, device);
  for (size_t c = 0; c < plan.size(); ++c) {
    for (const chunk::ChunkItem& item : plan[c].items) {
      optim::ParamView* view = sharded_[item.parameter].view;
      if (view != nullptr) view->set_state_context(homes_->optimizer_home(c));
    }
  }
}

void GatheredEngine::LimitDevice(nn::Module& model) {
  int64_t largest = 0;
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    if (!parameter->requires_grad()) continue;
    largest = std::max(largest, parameter->shape().numel() * DTypeSize(parameter->grad_dtype()));
  }
  homes_->LimitDevice(windows_->LargestGatheredBytes(model), largest);
}

// Computes the bytes that each chunk needs on the device besides its shard.
void GatheredEngine::Settle() {
  std::map<const optim::ParamView*, int64_t> state_bytes;
  optimizer_->ForEachView([&](const optim::ParamView& view, int group) {
    const bool master = view.trainable() && view.needs_master();
    state_bytes[&view] = optimizer_->states().PlannedBytes(view, group) +
                         (master ? view.value().numel() * DTypeSize(view.compute_dtype()) : 0);
  });
  const std::vector<chunk::ChunkSpec>& plan = parameters_->plan();
  std::vector<ChunkHomes::ChunkData> chunks(plan.size());
  for (size_t c = 0; c < plan.size(); ++c) {
    bool trainable = false;
    for (const chunk::ChunkItem& item : plan[c].items) {
      optim::ParamView* view = sharded_[item.parameter].view;
      chunks[c].views.push_back(view);
      trainable = trainable || sharded_[item.parameter].parameter->requires_grad();
      if (view != nullptr) chunks[c].optimizer_bytes += state_bytes.at(view);
    }
    if (!trainable) continue;
    const autograd::Parameter& first = *sharded_[plan[c].items[0].parameter].parameter;
    chunks[c].gradient_bytes = plan[c].shard_numel * DTypeSize(first.grad_dtype());
  }
  // With updates inside backward, values that stay whole would be outdated.
  homes_->Settle(*parameters_, chunks, /*keep_gathered=*/fused_ == nullptr);
}

size_t GatheredEngine::IndexOf(const autograd::Parameter& parameter) const {
  const auto found = std::ranges::find(
      sharded_, &parameter, [](const Sharded& sharded) { return sharded.parameter.get(); });
  return static_cast<size_t>(found - sharded_.begin());
}

Layout GatheredEngine::LayoutOf(const autograd::Parameter& parameter) const {
  const size_t index = IndexOf(parameter);
  return index < sharded_.size() ? parameters_->LayoutOf(index) : Layout(parameter.shape());
}

Tensor GatheredEngine::WholeValue(const autograd::Parameter& parameter) const {
  const size_t index = IndexOf(parameter);
  if (index == sharded_.size()) return parameter.data().Clone();
  return parameters_->WholeValue(index);
}

void GatheredEngine::BeforeStep() {
  ShardedEngine::BeforeStep();
  homes_->ReadAhead();
}

void GatheredEngine::AfterStep() {
  ShardedEngine::AfterStep();
  parameters_->ValuesChanged();
  parameters_->record().EndStep();
  homes_->WriteBack();
  if (homes_->is_unsettled()) Settle();
}

void GatheredEngine::BeforeWeightsReplaced() { homes_->ReadAhead(); }

void GatheredEngine::WeightsReplaced() {
  parameters_->ValuesChanged();
  homes_->WriteBack();
}

void GatheredEngine::OnMean(size_t index, const Tensor& mean) {
  if (fused_ == nullptr) return ShardedEngine::OnMean(index, mean);
  if (sharded_[index].view != nullptr) fused_->OnMean(*sharded_[index].view, mean);
}

void GatheredEngine::RunPass(const std::function<void()>& backward,
                             const chunk::GradientPass& pass) {
  TakeMeans([&] { windows_->Backward([&] { Reduce(backward, pass); }); });
}

void GatheredEngine::Backward(const Tensor& loss) {
  if (fused_ == nullptr) return ShardedEngine::Backward(loss);
  BeginBackward();
  struct End {
    GatheredEngine* failed;
    ~End() {
      if (failed != nullptr) failed->ForgetBackward();
    }
  } end{this};
  TakeMeans([&] {
    SetLossScale();  // options set since boost do not have it
    fused_->Backward([&](FusedShards::Walk walk) {
      unheld_gradients_->set_reduces(!walk.again);
      const auto backward = [&] {
        autograd::Backward(loss, {.grad = LossGradient(loss), .retain_graph = walk.retain_graph});
      };
      const auto agree = [&] {
        for (const Share& share : shares_) share.gradients->Agree();
      };
      windows_->Backward([&] { Reduce(backward, {.reduce = true}); }, agree);
    });
  });
  end.failed = nullptr;
}

}  // namespace apogee
