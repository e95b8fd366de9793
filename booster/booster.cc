// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/booster.h"

#include <unordered_set>
#include <utility>

#include "apogee/booster/call_site.h"
#include "apogee/nn/trace_modules.h"

namespace apogee {

void Booster::TraceTo(Trace* trace, int rank) {
  APOGEE_CHECK(model_ == nullptr,
               "TraceTo: this booster already runs a model; call it before boost");
  compute_lane_ = LaneOf(trace, rank, "compute");
  saver_lane_ = LaneOf(trace, rank, "saver");
}

void Booster::set_run_config(RunConfig config) {
  APOGEE_CHECK(model_ == nullptr,
               "set_run_config: this booster already runs a model; call it before boost");
  config_ = std::move(config);
}

Boosted Booster::boost(nn::Module& model, optim::Optimizer& optimizer, Criterion criterion,
                       data::Loader* loader, optim::LrScheduler* scheduler) {
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
  for (const optim::ParamView& view : optimizer.views()) {
    APOGEE_CHECK(known.contains(view.parameter().get()), "boost: the optimizer holds \"",
                 view.name(),
                 "\", which is not a parameter of the model; construct the optimizer from "
                 "model.Parameters()");
  }
  RunConfig config = CompletedConfig(config_, model, optimizer, scheduler);
  optim::Optimizer& configured = plugin_.Configure(model, optimizer);
  nn::TraceModules(model, compute_lane_);
  configured.set_trace_lane(compute_lane_);
  model.CloseTree();
  config_ = std::move(config);
  model_ = &model;
  optimizer_ = &configured;
  scheduler_ = scheduler;
  normalizer_ = std::make_shared<LossNormalizer>(plugin_.data_group());
  normalizer_->Attach(model);
  configured.AddPreStepHook([weak = std::weak_ptr(normalizer_)](optim::Optimizer&) {
    if (const auto normalizer = weak.lock()) normalizer->CheckStep();
  });
  return {model, configured, normalizer_->Wrap(plugin_.ConfigureCriterion(criterion), criterion),
          loader, scheduler};
}

void Booster::backward(const Tensor& loss, optim::Optimizer& optimizer) try {
  CheckBoosted("backward");
  APOGEE_CHECK(&optimizer == optimizer_.get(), "backward: optimizer ", optimizer.name(),
               " is not the ", optimizer_->name(),
               " that boost returned, which gets the gradients; call booster.backward(loss, "
               "boosted.optimizer), once for all optimizers, and step other optimizers yourself");
  CheckLoss("backward: the loss", loss);
  const TraceSpan span(compute_lane_, "backward", {.category = "backward"});
  normalizer_->NoteBackward(loss);
  plugin_.Backward(loss, optimizer);
} catch (const comm::CommError& error) {
  Rethrow("backward", error);
}

std::shared_ptr<void> Booster::accumulation_window(int64_t num_targets) {
  CheckBoosted("accumulation_window");
  return normalizer_->Window(num_targets);
}

PipelineResult Booster::execute_pipeline(const data::Batch& batch, nn::Module& model,
                                         const Criterion& criterion, optim::Optimizer* optimizer,
                                         const PipelineOptions& options) try {
  CheckBoosted("execute_pipeline");
  APOGEE_CHECK(&model == model_ && (optimizer == nullptr || optimizer == optimizer_),
               "execute_pipeline: needs the model and the optimizer that boost returned");
  return plugin_.ExecutePipeline({.inputs = batch.inputs,
                                  .targets = batch.targets,
                                  .model = model,
                                  .criterion = criterion,
                                  .optimizer = optimizer,
                                  .return_outputs = options.return_outputs,
                                  .normalizer = normalizer_.get()});
} catch (const comm::CommError& error) {
  Rethrow("execute_pipeline", error);
}

}  // namespace apogee
