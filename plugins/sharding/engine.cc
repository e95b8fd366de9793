// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/sharding/engine.h"

#include <algorithm>
#include <map>
#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/plugins/data_parallel.h"
#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee {
namespace {

// Before the members that need valid options are made.
const TrainingOptions& Checked(const std::string& plugin, const TrainingOptions& training,
                               std::string problems) {
  CheckTrainingOptions(training, problems);
  APOGEE_CHECK(problems.empty(), plugin, " plugin: invalid options:", problems);
  return training;
}

}  // namespace

DataParallelEngine::DataParallelEngine(std::string plugin, comm::GroupPtr group,
                                       const TrainingOptions& training, const CutParameters& cut,
                                       std::string problems)
    : plugin_(std::move(plugin)),
      group_(std::move(group)),
      training_(Checked(plugin_, training, std::move(problems))),
      cut_(cut),
      policy_(DTypeOf(training.precision)) {
  if (training.precision == Precision::kFp16) {
    scaler_ = std::make_unique<optim::LossScaler>(training.loss_scaler);
  }
}

DataParallelEngine::~DataParallelEngine() {
  if (!configured_ || optimizer_.is_gone()) return;
  optimizer_->RefuseSteps(plugin_ + ": step() of optimizer " + optimizer_->name() +
                          " after its plugin was destroyed; the plugin must outlive the training "
                          "loop");
}

void DataParallelEngine::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  APOGEE_CHECK(!configured_, plugin_,
               ": the plugin runs another model already; make one plugin per model");
  if (!is_cut()) CheckWhole(plugin_, model);
  for (const optim::ParamView& view : optimizer.views()) {
    APOGEE_CHECK(!view.sharded() || !view.parameter()->is_here(), plugin_, ": parameter \"",
                 view.name(), "\" of optimizer ", optimizer.name(),
                 " is a shard already: another plugin has it; an optimizer can be boosted once");
  }
  CheckPrecision(PrecisionPolicy(training_, model), optimizer);
}

void DataParallelEngine::Prepare(nn::Module& model, const optim::Optimizer& optimizer,
                                 bool with_values) const {
  if (!cut_.is_synced) {
    const auto prepare = with_values ? PrepareReplicas : PrepareReplicasButValues;
    return prepare(plugin_, model, optimizer, group_);
  }
  if (group_ != nullptr) MaskByPlace(model, group_->rank());
}

void DataParallelEngine::TakeValue(autograd::Parameter& parameter) const {
  if (!cut_.is_synced) SyncValue(parameter, group_);
}

void DataParallelEngine::Listen() {
  if (optimizer_->traits().fused_backward) {
    single_backward_ = optimizer_->name();
  }
  optim::StepOptions step_options = optimizer_->step_options();
  if (training_.max_norm > 0) step_options.max_norm = training_.max_norm;
  optimizer_->set_step_options(step_options);
  // A fused backward multiplies the loss itself, where plugins use loss_scale().
  if (single_backward_.empty()) own_scale_ = step_options.loss_scale;
  SetLossScale();
  own_ = optimizer_->AddListener(*this);
  configured_ = true;
}

void DataParallelEngine::Backward(const Tensor& loss) {
  const bool reduce = BeginBackward();
  RunPass([&] { autograd::Backward(loss, {.grad = LossGradient(loss)}); }, {.reduce = reduce});
}

bool DataParallelEngine::BeginBackward() {
  APOGEE_CHECK(configured_, plugin_, ": backward before boost; call booster.boost first");
  APOGEE_CHECK(!optimizer_.is_gone(), plugin_,
               ": backward after the optimizer that boost returned was destroyed; keep it for as "
               "long as the model trains");
  const bool reduce = *no_sync_depth_ == 0;
  APOGEE_CHECK(single_backward_.empty() || (num_backwards_ == 0 && reduce), plugin_, ": optimizer ",
               single_backward_,
               " uses each gradient up as soon as it is final, so gradients of several backward "
               "calls cannot be accumulated: use one larger batch, and call step() after each "
               "backward");
  ++num_backwards_;
  unreduced_ = !reduce;
  optimizer_->listeners()->Tell(&StepListener::BeforeBackward);
  return reduce;
}

std::shared_ptr<void> DataParallelEngine::NoSync() {
  ++*no_sync_depth_;
  return std::shared_ptr<void>(nullptr, [depth = no_sync_depth_](void*) { --*depth; });
}

void DataParallelEngine::SetLossScale() const {
  optim::StepOptions options = optimizer_->step_options();
  options.loss_scale = own_scale_ * loss_scale();
  optimizer_->set_step_options(options);
}

void DataParallelEngine::BeforeStep() {
  APOGEE_CHECK(num_backwards_ > 0, plugin_,
               ": step() without a backward since the last step; call booster.backward(loss, "
               "optimizer) first");
  APOGEE_CHECK(!unreduced_, plugin_,
               ": step() after a backward under no_sync, whose gradients have not been averaged "
               "over the ranks; let the last micro-batch's backward run outside of no_sync");
  // Options set since boost do not have the scale that backward used.
  if (scaler_ != nullptr || !single_backward_.empty()) SetLossScale();
}

void DataParallelEngine::Decided() {
  if (scaler_ == nullptr) return;
  scaler_->Update(optimizer_->last_step().skip);
  SetLossScale();
}

void ShardedEngine::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  DataParallelEngine::Check(model, optimizer);
  CheckTakesMeans(plugin_, optimizer);
  CheckShardable(plugin_, optimizer);
  APOGEE_CHECK(!model.Parameters().empty(), plugin_, ": the model has no parameters");
}

void ShardedEngine::Choose(const nn::Module& model, optim::Optimizer& optimizer) {
  const optim::OptimizerTraits traits = optimizer.traits();
  struct Held {
    optim::ParamView* view = nullptr;
    int64_t cut_multiple = 1;
  };
  std::map<const autograd::Parameter*, Held> held_by_optimizer;
  optimizer.ForEachView([&](optim::ParamView& view, int group) {
    held_by_optimizer[view.parameter().get()] = {&view, traits.Of(view, group).cut_multiple};
  });
  std::vector<autograd::ParameterPtr> all = HeldParameters(model);
  std::ranges::reverse(all);  // backward completes the last layers' gradients first
  for (const autograd::ParameterPtr& parameter : all) {
    const auto [view, cut_multiple] = held_by_optimizer[parameter.get()];
    const bool held = view != nullptr, trainable = parameter->requires_grad();
    if (!trainable && (held || shards_frozen())) frozen_.push_back(parameter);
    if (trainable ? held : shards_frozen()) {
      sharded_.push_back({parameter, view, cut_multiple});
      continue;
    }
    if (!held) {
      if (IsFloat(parameter->dtype())) unheld_.push_back(parameter);
    } else if (is_cut()) {
      view->BindParameter(PartOf(*parameter));
    }
    // Before chunks are made. PlaceValues converts the others, once it has made them equal.
    if (!shards_frozen()) ConvertParameter(policy_.Of(*parameter), *parameter);
  }
  const auto experts = std::ranges::stable_partition(sharded_, [&](const Sharded& sharded) {
    return !cut_.is_expert || !cut_.is_expert(*sharded.parameter);
  });
  const size_t num_others = sharded_.size() - experts.size();
  shares_.push_back({.group = group_, .first = 0, .count = num_others});
  if (cut_.is_expert) {
    shares_.push_back({.group = cut_.expert_copies,
                       .first = num_others,
                       .count = experts.size(),
                       .is_experts = true});
  }
}

std::vector<DType> ShardedEngine::DTypesOf(const Share& share,
                                           const std::vector<chunk::ChunkSpec>& plan) const {
  std::vector<DType> dtypes;
  for (const chunk::ChunkSpec& chunk : plan) {
    dtypes.push_back(policy_.Of(*sharded_[share.first + chunk.items.at(0).parameter].parameter));
  }
  return dtypes;
}

std::vector<autograd::ParameterPtr> ShardedEngine::Parameters(const Share& share) const {
  std::vector<autograd::ParameterPtr> parameters;
  for (size_t i = 0; i < share.count; ++i) {
    parameters.push_back(sharded_[share.first + i].parameter);
  }
  return parameters;
}

void ShardedEngine::Bind(size_t index, const Tensor& old_value, const Tensor& shard,
                         const Layout& layout) const {
  optim::ParamView* view = sharded_[index].view;
  if (view == nullptr) return;
  const Layout part = PartOf(*view->parameter());
  view->BindShard(shard, part.Part(layout));
  const bool rounds = NeedsMasters(policy_.Of(*view->parameter()));
  if (!view->trainable() || !rounds || !keep_masters_) return;
  if (view->own_master().defined()) return;
  if (old_value.dtype() != DType::kF32) return;  // the cast loses nothing
  view->set_master(view->CutToLayout(old_value, part));
}

optim::Optimizer& ShardedEngine::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  Check(model, optimizer);
  optimizer_ = &optimizer;
  policy_ = PrecisionPolicy(training_, model);
  Prepare(model, optimizer, /*with_values=*/!shards_frozen());
  Choose(model, optimizer);
  std::vector<std::vector<chunk::ChunkSpec>> plans;
  size_t num_chunks = 0;
  for (Share& share : shares_) {
    plans.push_back(Plan(model, share));
    share.first_chunk = std::exchange(num_chunks, num_chunks + plans.back().size());
  }
  PlaceValues(model, plans);
  for (const Sharded& sharded : sharded_) {
    ConvertParameter(policy_.Of(*sharded.parameter), *sharded.parameter);
  }
  SetComputeDTypes(policy_, model);
  PlaceGradients();
  for (size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[i];
    chunk::GradientChunkOptions options = GradientOptions(optimizer, share);
    options.listeners = optimizer.listeners();
    share.gradients = std::make_unique<chunk::GradientChunks>(
        Parameters(share), plans[i], share.group, options,
        [this, first = share.first](size_t index, const Tensor& mean) {
          OnMean(first + index, mean);
        });
  }
  // Another optimizer, unknown to the plugin, may step on the rest.
  unheld_gradients_ = std::make_unique<chunk::GradientChunks>(
      unheld_, group_,
      chunk::GradientChunkOptions{
          .chunk_bytes = training_.bucket_bytes, .overlap = false, .key_of = cut_.bucket_key});
  optim::SumStatistics(optimizer, is_cut() ? cut_.statistics_group : group_);
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
  for (const auto& [parameter, view, cut_multiple, place, mean] : sharded_) {
    APOGEE_CHECK(!parameter->requires_grad() || !parameter->has_grad(), plugin_, ": parameter \"",
                 parameter->name(),
                 "\" was given a gradient outside of backward, but the plugin keeps gradients on "
                 "shards; change them in a gradient hook (Parameter::AddGradHook)");
  }
}

void ShardedEngine::Reduce(const std::function<void()>& backward, const chunk::GradientPass& pass) {
  std::vector<chunk::GradientChunks*> all;
  for (const Share& share : shares_) all.push_back(share.gradients.get());
  all.push_back(unheld_gradients_.get());
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
  for (const Share& share : shares_) {
    for (size_t i = 0; i < share.count; ++i) {
      Sharded& sharded = sharded_[share.first + i];
      const Tensor mean = std::exchange(sharded.mean, {});
      if (mean.defined() && share.gradients->present(i)) sharded.view->set_grad(mean);
    }
  }
}

DataParallelPlugin::DataParallelPlugin(std::unique_ptr<DataParallelEngine> engine)
    : engine_(std::move(engine)) {}
DataParallelPlugin::~DataParallelPlugin() = default;

void DataParallelPlugin::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  engine_->Check(model, optimizer);
}
optim::Optimizer& DataParallelPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  return engine_->Configure(model, optimizer);
}
void DataParallelPlugin::Backward(const Tensor& loss, optim::Optimizer& /*optimizer*/) {
  engine_->Backward(loss);
}
std::shared_ptr<void> DataParallelPlugin::NoSync() { return engine_->NoSync(); }
comm::GroupPtr DataParallelPlugin::group() const { return engine_->group(); }
comm::GroupPtr DataParallelPlugin::data_group() const { return engine_->group(); }
Layout DataParallelPlugin::LayoutOf(const autograd::Parameter& parameter) const {
  return engine_->LayoutOf(parameter);
}
Tensor DataParallelPlugin::WholeValue(const autograd::Parameter& parameter) const {
  return engine_->WholeValue(parameter);
}
optim::LossScaler* DataParallelPlugin::loss_scaler() { return engine_->loss_scaler(); }

}  // namespace apogee
