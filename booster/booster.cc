// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/booster.h"

#include <unordered_set>
#include <utility>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/lora/adapters.h"
#include "apogee/booster/run_config.h"
#include "apogee/booster/save_runner.h"
#include "apogee/booster/state_files.h"
#include "apogee/booster/training_checkpoints.h"
#include "apogee/booster/training_state.h"
#include "apogee/core/trace/step_log.h"
#include "apogee/nn/trace_modules.h"
#include "apogee/optim/averaged/evaluation_weights.h"
#include "apogee/plugins/batch_sum.h"
#include "apogee/plugins/loss_normalizer.h"

namespace apogee {

Booster::Booster(Plugin& plugin)
    : plugin_(plugin),
      watched_plugin_(&plugin),
      adapters_(std::make_unique<Adapters>()),
      checkpoints_(std::make_unique<TrainingCheckpoints>()),
      saves_(std::make_unique<SaveRunner>()) {}
Booster::~Booster() = default;

void Booster::CheckBoosted(const char* what) const {
  APOGEE_CHECK(model_ != nullptr, what, ": call boost(model, optimizer) first");
  const char* gone = model_.is_gone()            ? "model that was given to boost"
                     : optimizer_.is_gone()      ? "optimizer that boost returned"
                     : watched_plugin_.is_gone() ? "plugin of this booster"
                                                 : nullptr;
  APOGEE_CHECK(gone == nullptr, what, ": the ", gone,
               " has been destroyed; keep it for as long as its booster is used");
}

void Booster::CheckScheduler(const char* what) const {
  APOGEE_CHECK(!scheduler_.is_gone(), what,
               ": the scheduler that was given to boost has been destroyed; keep it for as long as "
               "its booster is used");
}

// Adds the name of the call to an error of a collective. If ranks make different calls, the error
// only says that their collectives differ; the user can look up the call in the loop.
template <typename Body>
auto Booster::InCall(const char* call, const Body& body) try {
  CheckBoosted(call);
  return body();
} catch (const comm::CommError& error) {
  throw comm::CommError(internal::Concat(
      call, ": ", error.what(), ". This rank was in ", call,
      ". Every rank must make the same forwards, backwards, steps and saves in the "
      "same order; a save or an evaluation on rank 0 alone is the usual mistake"));
}

TrainingParts Booster::Parts() {
  return {.model = *model_,
          .optimizer = *optimizer_,
          .scheduler = scheduler_.get(),
          .plugin = plugin_,
          .config = &config_};
}

void Booster::CheckTrains(const char* what) const {
  APOGEE_CHECK(evaluation_.expired(), what,
               ": the model has the weights to evaluate; destroy the handle of evaluation_weights "
               "first");
}

std::shared_ptr<void> Booster::evaluation_weights() {
  return InCall("evaluation_weights", [&]() -> std::shared_ptr<void> {
    if (std::shared_ptr<void> open = evaluation_.lock()) return open;
    if (!optimizer_->traits().averages_weights) return nullptr;
    auto weights = std::make_shared<optim::EvaluationWeights>(*optimizer_);
    evaluation_ = weights;
    return weights;
  });
}

void Booster::TraceTo(Trace* trace, int rank) {
  APOGEE_CHECK(model_ == nullptr,
               "TraceTo: this booster already runs a model; call it before boost");
  compute_lane_ = LaneOf(trace, rank, "compute");
  log_ = trace == nullptr ? nullptr
                          : std::make_unique<StepLog>(trace->Lane(rank, "step events"), nullptr);
  saves_->TraceTo(compute_lane_, LaneOf(trace, rank, "saver"));
}

void Booster::set_run_config(RunConfig config) {
  APOGEE_CHECK(model_ == nullptr,
               "set_run_config: this booster already runs a model; call it before boost");
  config_ = std::move(config);
}

void Booster::enable_lora(nn::Module& model, const nn::LoraOptions& options,
                          const std::string& adapter) {
  APOGEE_CHECK(model_ == nullptr,
               "enable_lora: this booster already runs a model; call it before boost");
  adapters_->Add(model, options, adapter);
}

absl::Status Booster::enable_lora_from(nn::Module& model, const std::string& pretrained_dir,
                                       const std::string& adapter,
                                       const std::shared_ptr<checkpoint::FileSystem>& files,
                                       const std::optional<nn::QuantizeOptions>& quantize) {
  APOGEE_CHECK(model_ == nullptr,
               "enable_lora_from: this booster already runs a model; call it before boost");
  return adapters_->Add(model, pretrained_dir, adapter, quantize, files);
}

Boosted Booster::boost(nn::Module& model, optim::Optimizer& optimizer,
                       const BoostOptions& options) {
  APOGEE_CHECK(model_ == nullptr,
               "boost: this booster already runs a model; make one Booster (and "
               "plugin) per model");
  model.CheckNames();
  std::unordered_set<const autograd::Parameter*> known;
  for (const auto& parameter : model.Parameters()) {
    APOGEE_CHECK(parameter->has_value(), "boost: parameter \"", parameter->name(),
                 "\" has no value yet; call model.Initialize(context) or load weights first");
    known.insert(parameter.get());
  }
  APOGEE_CHECK(model.QuantizedWeights().empty() || !nn::AdaptedLayers(model).empty(),
               "boost: the model's weights are quantized, so they are not trained, and it has no "
               "adapters; call enable_lora");
  for (const optim::ParamView& view : optimizer.views()) {
    APOGEE_CHECK(known.contains(view.parameter().get()), "boost: the optimizer holds \"",
                 view.name(),
                 "\", which is not a parameter of the model; construct the optimizer from "
                 "model.Parameters()");
  }
  RunConfig config = CompletedConfig(config_, model, optimizer, options.scheduler);
  optim::Optimizer& configured = plugin_.Configure(model, optimizer);
  if (const std::optional<DType> residual = model.residual_dtype()) {
    config.settings["residual_stream"] = DTypeName(*residual);
  }
  nn::TraceModules(model, compute_lane_);
  configured.set_trace_lane(compute_lane_);
  model.CloseTree();
  config_ = std::move(config);
  model_ = &model;
  optimizer_ = &configured;
  scheduler_ = options.scheduler;
  normalizer_ = std::make_shared<LossNormalizer>(plugin_.data_group());
  normalizer_->Attach(model);
  model.set_batch_sum(BatchSumOf(plugin_, model));
  model.set_progress([steps = num_steps_] { return internal::Concat("step ", *steps + 1); });
  listens_.push_back(configured.AddListener(*this));
  if (log_ != nullptr) listens_.push_back(configured.AddListener(*log_));
  const Criterion& criterion = options.criterion;
  return {model, configured, normalizer_->Wrap(plugin_.ConfigureCriterion(criterion), criterion)};
}

void Booster::BeforeStep() {
  const internal::Window& window = *window_;
  APOGEE_CHECK(window.losses.empty() || window.is_complete(), "step: ", window.losses.size(),
               " of the window's ", window.num_micro_batches,
               " micro-batches have run; step when the Accumulation is_complete(), or destroy it "
               "and call zero_grad() to give up the window");
  normalizer_->CheckStep();
}

void Booster::backward(const Tensor& loss, optim::Optimizer& optimizer) {
  InCall("backward", [&] { EndMicroBatch(RunBackward(loss, optimizer, BeginMicroBatch())); });
}

Tensor Booster::RunBackward(const Tensor& loss, optim::Optimizer& optimizer,
                            const internal::MicroBatch& micro) {
  APOGEE_CHECK(&optimizer == optimizer_.get(), "backward: optimizer ", optimizer.name(),
               " is not the ", optimizer_->name(),
               " that boost returned, which gets the gradients; call booster.backward(loss, "
               "boosted.optimizer), once for all optimizers, and step other optimizers yourself");
  CheckLoss("backward: the loss", loss);
  const Tensor part = micro.share == 1 ? loss : autograd::Scale(loss, micro.share);
  const std::shared_ptr<void> keep_local = micro.is_last ? nullptr : plugin_.NoSync();
  const TraceSpan span(compute_lane_, "backward", {.category = "backward"});
  normalizer_->NoteBackward(part);
  plugin_.Backward(part, optimizer);
  return part;
}

Accumulation Booster::accumulate(int64_t num_micro_batches) {
  CheckBoosted("accumulate");
  APOGEE_CHECK(num_micro_batches >= 1, "accumulate: the number of micro-batches is ",
               num_micro_batches, ", must be at least 1");
  APOGEE_CHECK(!window_->is_open(), "accumulate: windows of ", window_->num_micro_batches,
               " micro-batches are open; destroy that Accumulation first");
  window_->num_micro_batches = num_micro_batches;
  return Accumulation(window_);
}

internal::MicroBatch Booster::BeginMicroBatch() {
  if (!window_->is_open()) return {};
  if (window_->is_complete()) window_->losses.clear();
  const int64_t count = window_->num_micro_batches;
  // In a window of targets, losses are addends of the mean already.
  return {.share = normalizer_->in_window() ? 1.0 : 1.0 / static_cast<double>(count),
          .is_last = static_cast<int64_t>(window_->losses.size()) + 1 == count};
}

void Booster::EndMicroBatch(const Tensor& loss) {
  if (window_->is_open()) window_->losses.push_back(loss.defined() ? loss.Detach() : loss);
}

std::shared_ptr<void> Booster::accumulation_window(int64_t num_targets) {
  CheckBoosted("accumulation_window");
  return normalizer_->Window(num_targets);
}

PipelineResult Booster::execute_pipeline(const data::Batch& batch, nn::Module& model,
                                         const Criterion& criterion, optim::Optimizer* optimizer,
                                         const PipelineOptions& options) {
  return InCall("execute_pipeline", [&] {
    APOGEE_CHECK(&model == model_ && (optimizer == nullptr || optimizer == optimizer_),
                 "execute_pipeline: needs the model and the optimizer that boost returned");
    const internal::MicroBatch micro =
        optimizer != nullptr ? BeginMicroBatch() : internal::MicroBatch{};
    const Criterion part = [&criterion, share = micro.share](const Tensor& output,
                                                             const Tensor& target) {
      return autograd::Scale(criterion(output, target), share);
    };
    const Auxiliary auxiliary_part = [&, share = micro.share](const auto& modules) {
      const Tensor loss = options.auxiliary(modules);
      return loss.defined() ? autograd::Scale(loss, share) : loss;
    };
    const std::shared_ptr<void> keep_local = micro.is_last ? nullptr : plugin_.NoSync();
    PipelineResult result = plugin_.ExecutePipeline(
        {.inputs = batch.inputs,
         .targets = batch.targets,
         .model = model,
         .criterion = micro.share == 1 || criterion == nullptr ? criterion : part,
         .optimizer = optimizer,
         .return_outputs = options.return_outputs,
         .normalizer = normalizer_.get(),
         .starts = batch.Has("starts") ? batch["starts"] : Tensor(),
         .auxiliary = options.auxiliary == nullptr ? nullptr : auxiliary_part});
    if (optimizer != nullptr) EndMicroBatch(result.loss);
    return result;
  });
}

std::vector<std::vector<int64_t>> Booster::generate(
    const std::vector<std::vector<int64_t>>& prompts, nn::Module& model,
    const nn::GenerateOptions& options) {
  return InCall("generate", [&] {
    APOGEE_CHECK(&model == model_, "generate: needs the model that boost returned");
    return nn::Generate(model, prompts, options,
                        [&](const Tensor& tokens) { return plugin_.Evaluate(model, tokens); });
  });
}

template <typename Body>
absl::Status Booster::InSave(const char* call, const Body& body) {
  return InCall(call, [&] {
    const std::vector<autograd::ParameterPtr> parameters = model_->Parameters();
    const bool dry = !parameters.empty() && parameters[0]->context()->is_dry();
    return dry ? absl::OkStatus() : body();
  });
}

absl::Status Booster::save_training_state(const std::string& folder, const RunPosition& position,
                                          const SaveOptions& options) {
  return InSave("save_training_state", [&] {
    CheckScheduler("save_training_state");
    CheckTrains("save_training_state");
    return checkpoints_->Save(Parts(), folder, position, options, *saves_);
  });
}

absl::StatusOr<Resumed> Booster::resume(const std::string& folder,
                                        const std::shared_ptr<checkpoint::FileSystem>& files) {
  return InCall("resume", [&] {
    CheckScheduler("resume");
    CheckTrains("resume");
    absl::StatusOr<Resumed> resumed = checkpoints_->Resume(Parts(), folder, files, *saves_);
    if (resumed.ok()) *num_steps_ = resumed->position.step;
    return resumed;
  });
}

absl::Status Booster::save_model(const std::string& path, const SaveModelOptions& options) {
  CheckBoosted("save_model");
  if (!model_->QuantizedWeights().empty()) {
    return InvalidArgument(
        "save_model: the base is quantized, and its codes are not written; call save_adapter. For "
        "a "
        "whole model, add the adapter to the model that was quantized (nn::MergedAdapter)");
  }
  return InSave("save_model", [&] {
    const auto averages = evaluation_weights();
    return StateFiles(Parts(), *saves_).SaveModel(path, options);
  });
}

absl::StatusOr<checkpoint::LoadReport> Booster::load_model(const std::string& path,
                                                           const LoadModelOptions& options) {
  CheckBoosted("load_model");
  if (!model_->QuantizedWeights().empty()) {
    return InvalidArgument(
        "load_model: the base is quantized, and has no place for other weights; load them before "
        "enable_lora");
  }
  return InCall("load_model", [&] {
    CheckTrains("load_model");
    return StateFiles(Parts(), *saves_).LoadModel(path, options);
  });
}

absl::Status Booster::save_adapter(const std::string& path, const SaveAdapterOptions& options) {
  return InSave("save_adapter", [&] {
    const auto averages = evaluation_weights();
    return StateFiles(Parts(), *saves_).SaveAdapter(*adapters_, path, options);
  });
}

void Booster::merge_adapter(const std::string& adapter) {
  InCall("merge_adapter", [&] {
    saves_->Settle();
    adapters_->Merge(*model_, plugin_, adapter);
  });
}

void Booster::unmerge_adapter(const std::string& adapter) {
  InCall("unmerge_adapter", [&] {
    saves_->Settle();
    adapters_->Unmerge(*model_, adapter);
  });
}

absl::Status Booster::load_adapter(const std::string& path, const std::string& adapter,
                                   const std::shared_ptr<checkpoint::FileSystem>& files) {
  return InCall("load_adapter", [&] {
    CheckTrains("load_adapter");
    return StateFiles(Parts(), *saves_).LoadAdapter(*adapters_, path, adapter, files);
  });
}

absl::Status Booster::save_optimizer(const std::string& path, const FileOptions& options) {
  return InSave("save_optimizer", [&] {
    CheckTrains("save_optimizer");
    return StateFiles(Parts(), *saves_).SaveOptimizer(path, options);
  });
}

absl::Status Booster::load_optimizer(const std::string& path,
                                     const std::shared_ptr<checkpoint::FileSystem>& files) {
  return InCall("load_optimizer", [&] {
    CheckTrains("load_optimizer");
    return StateFiles(Parts(), *saves_).LoadOptimizer(path, files);
  });
}

absl::Status Booster::save_lr_scheduler(const std::string& path, const FileOptions& options) {
  return InSave("save_lr_scheduler", [&] {
    CheckScheduler("save_lr_scheduler");
    return StateFiles(Parts(), *saves_).SaveScheduler(path, options);
  });
}

absl::Status Booster::load_lr_scheduler(const std::string& path,
                                        const std::shared_ptr<checkpoint::FileSystem>& files) {
  return InCall("load_lr_scheduler", [&] {
    CheckScheduler("load_lr_scheduler");
    return StateFiles(Parts(), *saves_).LoadScheduler(path, files);
  });
}

absl::Status Booster::wait_for_saves() { return saves_->Wait(); }

std::optional<absl::Status> Booster::save_status() const { return saves_->status(); }

absl::Status Booster::check_space(const std::string& folder, int64_t checkpoints,
                                  const std::shared_ptr<checkpoint::FileSystem>& files) const {
  CheckBoosted("check_space");
  return TrainingCheckpoints::CheckSpace({*model_, *optimizer_, scheduler_, plugin_, nullptr},
                                         folder, checkpoints, files);
}

}  // namespace apogee
