// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/low_level_zero.h"

#include <algorithm>
#include <map>
#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/chunk/gradient_chunks.h"
#include "apogee/chunk/parameter_chunks.h"
#include "apogee/core/process_memory.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/plugins/backward_passes.h"
#include "apogee/plugins/hybrid/cut_parameters.h"
#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"
#include "apogee/plugins/step_guard.h"
#include "apogee/plugins/zero/shard_gradients.h"
#include "apogee/tensor/make_context.h"

namespace apogee {

std::vector<optim::OptionField<LowLevelZeroOptions>> LowLevelZeroOptions::Fields() {
  using Options = LowLevelZeroOptions;
  return {{"stage", &Options::stage},
          {"communication_dtype", optim::EnumField(&Options::communication_dtype, ParsePrecision)},
          {"overlap_gather", &Options::overlap_gather},
          {"master_weights", &Options::master_weights},
          {"offload_states", &Options::offload_states}};
}

struct LowLevelZeroPlugin::State : public BackwardPasses {
  State(comm::GroupPtr group, const TrainingOptions& training, const LowLevelZeroOptions& options,
        const CutParameters& cut);

  void Check(const nn::Module& model, optim::Optimizer& optimizer) const;
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer);
  void Backward(const Tensor& loss);
  bool BeginBackward() override { return guard_->OnBackward(); }
  void RunPass(const std::function<void()>& backward, const chunk::GradientPass& pass) override;
  bool ReducesEachPass() const override { return options_.stage == 2; }
  void CheckRoom(optim::Optimizer& optimizer) const;
  std::vector<chunk::ChunkSpec> Plan(optim::Optimizer& optimizer) const;
  void Bind(optim::ParamView& view, const Tensor& old_value, const Tensor& shard,
            const Layout& layout) const;

  comm::GroupPtr group_;
  TrainingOptions training_;
  LowLevelZeroOptions options_;
  CutParameters cut_;
  DType dtype_;
  std::optional<DType> communication_dtype_;
  ContextPtr state_context_;
  std::vector<autograd::ParameterPtr> sharded_;  // in the order backward completes them
  std::vector<optim::ParamView*> views_;         // of sharded_
  std::unique_ptr<ShardGradients> shards_;
  std::unique_ptr<StepGuard> guard_;
  std::unique_ptr<chunk::ParameterChunks> parameters_;
  std::unique_ptr<chunk::GradientChunks> gradients_;
  std::unique_ptr<chunk::GradientChunks> unheld_gradients_;  // of unheld parameters
  std::vector<Subscription> hooks_;
};

LowLevelZeroPlugin::State::State(comm::GroupPtr group, const TrainingOptions& training,
                                 const LowLevelZeroOptions& options, const CutParameters& cut)
    : group_(std::move(group)),
      training_(training),
      options_(options),
      cut_(cut),
      dtype_(DTypeOf(training.precision)) {
  std::string errors;
  if (options.stage != 1 && options.stage != 2) {
    errors += "\n  stage must be 1 (states sharded) or 2 (gradients too), got " +
              std::to_string(options.stage);
  }
  if (options.communication_dtype) communication_dtype_ = DTypeOf(*options.communication_dtype);
  CheckTrainingOptions(training, errors);
  APOGEE_CHECK(errors.empty(), "low_level_zero plugin: invalid options:", errors);
  guard_ = std::make_unique<StepGuard>("low_level_zero", training);
}

void LowLevelZeroPlugin::State::Check(const nn::Module& model, optim::Optimizer& optimizer) const {
  APOGEE_CHECK(gradients_ == nullptr,
               "low_level_zero: the plugin runs another model already; make one plugin per model");
  if (cut_.statistics_group == nullptr) CheckWhole("low_level_zero", model);
  CheckTakesMeans("low_level_zero", optimizer);
  CheckShardable("low_level_zero", optimizer);
  for (const optim::ParamView& view : optimizer.views()) {
    APOGEE_CHECK(!view.sharded() || cut_.statistics_group != nullptr,
                 "low_level_zero: parameter \"", view.name(), "\" of optimizer ", optimizer.name(),
                 " is a shard already; an optimizer can be boosted once");
  }
  CheckPrecision(dtype_, optimizer);
  APOGEE_CHECK(!model.Parameters().empty(), "low_level_zero: the model has no parameters");
  if (options_.offload_states) CheckRoom(optimizer);
}

void LowLevelZeroPlugin::State::CheckRoom(optim::Optimizer& optimizer) const {
  const absl::StatusOr<int64_t> available = AvailableMemoryBytes();
  if (!available.ok()) return;  // the system does not say; the allocator will fail if needed
  int64_t needed = optimizer.PlannedStateBytes();
  for (const optim::ParamView& view : optimizer.views()) {
    const bool master = view.trainable() && NeedsMasters(dtype_) && options_.master_weights;
    needed += master ? 4 * view.value().numel() : 0;
  }
  // The ranks of one host together hold all shards.
  APOGEE_CHECK(needed <= *available, "low_level_zero: offload_states needs ", needed,
               " bytes of host memory for the states of optimizer ", optimizer.name(), ", ",
               *available, " are available; use an optimizer with smaller states, or more hosts");
}

std::vector<chunk::ChunkSpec> LowLevelZeroPlugin::State::Plan(optim::Optimizer& optimizer) const {
  std::map<const optim::ParamView*, int64_t> cut_multiple;
  optimizer.ForEachView([&](const optim::ParamView& view, int group) {
    cut_multiple[&view] = optimizer.CutMultiple(view, group);
  });
  const DType grad_dtype = NeedsMasters(dtype_) ? DType::kF32 : dtype_;
  std::vector<chunk::ChunkRequest> requests;
  for (const optim::ParamView* view : views_) {
    requests.push_back({.numel = view->value().numel(),
                        .element_bytes = DTypeSize(communication_dtype_.value_or(grad_dtype)),
                        .key = cut_.bucket_key ? cut_.bucket_key(*view->parameter()) : 0,
                        .cut_multiple = cut_multiple.at(view)});
  }
  return chunk::PlanChunks(
      requests, {.chunk_bytes = training_.bucket_bytes, .num_shards = comm::GroupSize(group_)});
}

// The shard's masters keep the bits that rounding to the working dtype drops.
void LowLevelZeroPlugin::State::Bind(optim::ParamView& view, const Tensor& old_value,
                                     const Tensor& shard, const Layout& layout) const {
  view.set_state_context(state_context_);
  view.set_keep_master(options_.master_weights);
  const Layout before = view.layout();
  view.BindShard(shard, before.Part(layout));
  if (!NeedsMasters(dtype_) || !options_.master_weights || view.own_master().defined()) return;
  if (old_value.dtype() != DType::kF32) return;  // the cast loses nothing
  view.set_master(view.CutToLayout(old_value, before));
}

optim::Optimizer& LowLevelZeroPlugin::State::Configure(nn::Module& model,
                                                       optim::Optimizer& optimizer) {
  Check(model, optimizer);
  const ContextPtr context = model.Parameters()[0]->context();
  PrepareReplicas("low_level_zero", model, optimizer, group_);

  state_context_ = options_.offload_states ? HostMemoryFor(context) : context;
  std::map<const autograd::Parameter*, optim::ParamView*> view_of;
  std::vector<autograd::ParameterPtr> unheld, frozen;
  for (optim::ParamView& view : optimizer.views()) view_of[view.parameter().get()] = &view;
  std::vector<autograd::ParameterPtr> all = HeldParameters(model);
  std::ranges::reverse(all);  // backward completes the last layers' gradients first
  for (const autograd::ParameterPtr& parameter : all) {
    const auto found = view_of.find(parameter.get());
    if (found == view_of.end() || !parameter->requires_grad()) {
      ConvertParameter(dtype_, *parameter);
      (found != view_of.end() ? frozen : unheld).push_back(parameter);
      continue;
    }
    sharded_.push_back(parameter);
    views_.push_back(found->second);
  }
  const std::vector<chunk::ChunkSpec> plan = Plan(optimizer);
  parameters_ = std::make_unique<chunk::ParameterChunks>(
      sharded_, plan, group_, dtype_,
      [this](size_t i, const Tensor& old_value, const Tensor& shard, const Layout& layout) {
        Bind(*views_[i], old_value, shard, layout);
      });
  for (const autograd::ParameterPtr& parameter : sharded_) ConvertParameter(dtype_, *parameter);
  shards_ = std::make_unique<ShardGradients>("low_level_zero", optimizer, sharded_, views_,
                                             std::move(frozen));
  gradients_ = std::make_unique<chunk::GradientChunks>(
      sharded_, plan, group_,
      chunk::GradientChunkOptions{.overlap = training_.overlap,
                                  .communication_dtype = communication_dtype_,
                                  .keep_whole = options_.stage == 1},
      [this](size_t index, const Tensor& mean) { shards_->OnMean(index, mean); });
  // Another optimizer, unknown to the plugin, may step on the rest.
  unheld_gradients_ = std::make_unique<chunk::GradientChunks>(
      std::move(unheld), group_,
      chunk::GradientChunkOptions{
          .chunk_bytes = training_.bucket_bytes, .overlap = false, .key_of = cut_.bucket_key});

  const bool cut_before = cut_.statistics_group != nullptr;
  optim::SumStatistics(optimizer, cut_before ? cut_.statistics_group : group_);
  guard_->Attach(optimizer);
  hooks_.emplace_back(optimizer.AddPreStepHook([this](optim::Optimizer&) {
    parameters_->Wait();
    shards_->CheckNoneFromElsewhere();
  }));
  hooks_.emplace_back(optimizer.AddStepHook([this](optim::Optimizer& stepped) {
    if (!stepped.may_have_updated()) return;
    parameters_->GatherAsync();
    if (!options_.overlap_gather) parameters_->Wait();
  }));
  // A state dict with masters holds weights, and this rank took only its shard of them.
  hooks_.emplace_back(
      optimizer.AddLoadHook([this](optim::Optimizer&) { parameters_->GatherAsync(); }));
  return optimizer;
}

void LowLevelZeroPlugin::State::RunPass(const std::function<void()>& backward,
                                        const chunk::GradientPass& pass) {
  chunk::GradientChunks* const all[] = {gradients_.get(), unheld_gradients_.get()};
  shards_->Backward(*gradients_, [&] { chunk::GradientChunks::Run(all, backward, pass); });
}

void LowLevelZeroPlugin::State::Backward(const Tensor& loss) {
  RunPass([&] { autograd::Backward(loss, {.grad = guard_->LossGradient(loss)}); },
          {.reduce = BeginBackward()});
}

LowLevelZeroPlugin::LowLevelZeroPlugin(comm::GroupPtr group, const TrainingOptions& training,
                                       const LowLevelZeroOptions& options)
    : LowLevelZeroPlugin(std::move(group), training, options, CutParameters{}) {}

LowLevelZeroPlugin::LowLevelZeroPlugin(comm::GroupPtr group, const TrainingOptions& training,
                                       const LowLevelZeroOptions& options, const CutParameters& cut)
    : state_(std::make_unique<State>(std::move(group), training, options, cut)) {}

LowLevelZeroPlugin::~LowLevelZeroPlugin() = default;

void LowLevelZeroPlugin::Check(const nn::Module& model, optim::Optimizer& optimizer) const {
  state_->Check(model, optimizer);
}
optim::Optimizer& LowLevelZeroPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  return state_->Configure(model, optimizer);
}
void LowLevelZeroPlugin::Backward(const Tensor& loss, optim::Optimizer& /*optimizer*/) {
  state_->Backward(loss);
}
std::shared_ptr<void> LowLevelZeroPlugin::NoSync() { return state_->guard_->NoSync(); }
comm::GroupPtr LowLevelZeroPlugin::group() const { return state_->group_; }
comm::GroupPtr LowLevelZeroPlugin::data_group() const { return state_->group_; }
optim::LossScaler* LowLevelZeroPlugin::loss_scaler() { return state_->guard_->loss_scaler(); }
double LowLevelZeroPlugin::loss_scale() const { return state_->guard_->loss_scale(); }
const chunk::ParameterChunks& LowLevelZeroPlugin::chunks() const { return *state_->parameters_; }
const ContextPtr& LowLevelZeroPlugin::state_context() const { return state_->state_context_; }
BackwardPasses& LowLevelZeroPlugin::passes() { return *state_; }

}  // namespace apogee
