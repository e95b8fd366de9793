// SPDX-License-Identifier: Apache-2.0

// Plugin: the interface of a training setup. A plugin checks its options, prepares the model and
// takes over the optimizer. It contains no algorithm of its own.
//
//   SingleRankPlugin plugin({.precision = Precision::kBf16, .max_norm = 1.0});
//   Booster booster(plugin);
//   auto boosted = booster.boost(model, optimizer);
//
// To write a plugin see docs/adding_a_plugin.md.
#ifndef APOGEE_PLUGINS_PLUGIN_H_
#define APOGEE_PLUGINS_PLUGIN_H_

#include <functional>
#include <memory>
#include <string>

#include "apogee/autograd/engine.h"
#include "apogee/comm/group.h"
#include "apogee/nn/module.h"
#include "apogee/optim/optimizer.h"
#include "apogee/optim/step/loss_scaler.h"

namespace apogee {

class LossNormalizer;  // loss_normalizer.h

using Criterion = std::function<Tensor(const Tensor& output, const Tensor& target)>;

// A further loss of modules that have just run one micro-batch, as nn::AuxiliaryLossOf. A plugin
// calls it for the whole model, or for the modules of one part of a pipeline. Undefined: they have
// none.
using Auxiliary = std::function<Tensor(const std::vector<nn::Module*>& modules)>;

// The arguments of Plugin::ExecutePipeline. `targets` may be undefined when there is no criterion,
// and `starts` (nn::Module::takes_documents) if documents are not packed.
struct PipelineCall {
  const Tensor& inputs;
  const Tensor& targets;
  nn::Module& model;
  const Criterion& criterion;
  optim::Optimizer* optimizer = nullptr;  // null: evaluation
  bool return_outputs = false;
  LossNormalizer* normalizer = nullptr;  // the criterion's; null: it has none
  Tensor starts = {};
  Auxiliary auxiliary = nullptr;  // added to the criterion's loss in training
};

// Throws Error unless the starts of `call` are undefined, or those of its inputs, and its model
// takes documents.
void CheckStarts(const PipelineCall& call);

struct PipelineResult {
  // The loss of this replica's batch: a scalar that belongs to no graph, on every rank that trains
  // the replica. With boosted.criterion it is the replica's share of the mean over all replicas'
  // targets (LossNormalizer). With another criterion it is the mean over the batch's samples.
  // Undefined without a criterion.
  Tensor loss;
  // The model's outputs for the whole batch, if return_outputs, on the ranks that have the last
  // part of the model.
  Tensor outputs;
};

// Throws Error unless `loss` is a defined scalar, so that backward can start from it. The message
// begins with `what`.
void CheckLoss(const char* what, const Tensor& loss);

class Plugin {
 public:
  virtual ~Plugin() = default;

  virtual std::string name() const = 0;

  // Prepares `model` in place and returns the optimizer to train with: `optimizer` itself or its
  // distributed form, which the plugin owns. Collective. Throws Error, before anything has changed,
  // when the combination cannot be exact.
  virtual optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) = 0;

  // Returns the criterion to apply to the configured model's output: the same loss as `criterion`,
  // which may be null. Call it after Configure.
  virtual Criterion ConfigureCriterion(Criterion criterion) { return criterion; }

  // Runs backward of one micro-batch. Collective if the plugin reduces gradients inside backward.
  virtual void Backward(const Tensor& loss, optim::Optimizer& optimizer) = 0;

  // Runs forward of a batch and, with an optimizer, backward. A plugin with pipeline stages cuts
  // the batch into micro-batches; this default runs it as one. An override must give the model the
  // starts of documents, or refuse them. Collective.
  virtual PipelineResult ExecutePipeline(const PipelineCall& call);

  // The output of a model in evaluation mode for a whole batch, on every rank that runs the
  // replica; they all pass the same batch. By default model(inputs): override it if that does not
  // run, since the model is cut into stages. Call it without a graph, after Configure. Collective.
  virtual Tensor Evaluate(nn::Module& model, const Tensor& inputs) { return model(inputs); }

  // All ranks that train the model together; null for one rank. They save checkpoints together:
  // one of them leads.
  virtual comm::GroupPtr group() const = 0;
  // The ranks over which gradients are averaged; each has samples of its own. boosted.criterion is
  // the mean over their samples. Null: gradients are not averaged in every step. Valid after
  // Configure.
  virtual comm::GroupPtr data_group() const = 0;
  // The ranks that share a micro-batch: those of data_group(), and under sequence parallelism those
  // that hold the other tokens of their samples. nn::Module::SumOverBatch adds up over them.
  virtual comm::GroupPtr batch_group() const { return data_group(); }
  // The group in which the plugin gathers whole values while they are used, if that is one of its
  // own, whose traffic is not that of the groups that it was given; else null. Valid after
  // Configure.
  virtual comm::GroupPtr gather_group() const { return nullptr; }
  // This rank trains on part data_rank() of data_size() of the data. By default every rank of
  // group() has a part of its own. Override both if several ranks share a part.
  virtual int data_rank() const;
  virtual int data_size() const;

  // The part of the whole parameter that this rank's Parameter::data() holds. By default all of it:
  // override it, and WholeValue, in a plugin that keeps only parts. Valid after Configure.
  virtual Layout LayoutOf(const autograd::Parameter& parameter) const {
    return Layout(parameter.shape());
  }
  // The whole value of a parameter, in the shape it had before boost. Collective over group() if
  // ranks keep only parts. Throws Error if LayoutOf says so and the plugin does not override this.
  // Valid after Configure.
  virtual Tensor WholeValue(const autograd::Parameter& parameter) const;
  // Null when the plugin or the precision has no dynamic loss scale. Checkpoints include it.
  virtual optim::LossScaler* loss_scaler() { return nullptr; }
  // The factor of the loss in backward: the scaler's, or 1 without one.
  double loss_scale() {
    const optim::LossScaler* scaler = loss_scaler();
    return scaler != nullptr ? scaler->scale() : 1;
  }
  // Whether Backward only runs the kernels of the graph, with no collective, hook or loss scale. If
  // so, GraphedMicroStep may capture it.
  virtual bool backward_is_only_kernels() const { return false; }

  // While the returned handle lives, backward keeps gradients local. All ranks must do the same.
  [[nodiscard]] virtual std::shared_ptr<void> NoSync() = 0;

  // Booster calls this at the start of every save. A save takes parts from several ranks and
  // refuses replicas that differ. So if the ranks' replicas may differ, make them equal here, by a
  // mean or from one rank. Collective.
  virtual void BeforeSave(optim::Optimizer& /*optimizer*/) {}

  // Expires when the plugin is destroyed.
  std::weak_ptr<const void> lifetime() const { return lifetime_.token(); }

 private:
  Lifetime lifetime_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_PLUGIN_H_
