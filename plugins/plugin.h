// SPDX-License-Identifier: Apache-2.0

// Plugin: how a training setup is run. A plugin validates its options, prepares the model, and
// takes over the optimizer; it contains no algorithm of its own.
//
//   SingleRankPlugin plugin({.precision = "bf16", .max_norm = 1.0});
//   Booster booster(plugin);
//
// To write one see docs/adding_a_plugin.md.
#ifndef APOGEE_PLUGINS_PLUGIN_H_
#define APOGEE_PLUGINS_PLUGIN_H_

#include <functional>
#include <memory>
#include <string>

#include "apogee/autograd/engine.h"
#include "apogee/comm/group.h"
#include "apogee/nn/module.h"
#include "apogee/optim/loss_scaler.h"
#include "apogee/optim/optimizer.h"
#include "apogee/plugins/loss_normalizer.h"

namespace apogee {

using Criterion = std::function<Tensor(const Tensor& output, const Tensor& target)>;

// A batch for Plugin::ExecutePipeline; `targets` may be undefined without a criterion.
struct PipelineCall {
  const Tensor& inputs;
  const Tensor& targets;
  nn::Module& model;
  const Criterion& criterion;
  optim::Optimizer* optimizer = nullptr;  // null: evaluation
  bool return_outputs = false;
  LossNormalizer* normalizer = nullptr;  // of `criterion`; null: it has none
};

struct PipelineResult {
  // The loss of this copy's batch, a scalar outside of any graph, on every rank that trains the
  // copy: of boosted.criterion its share of the mean over all copies' targets (LossNormalizer), of
  // other criteria the mean over the batch's samples. Undefined without a criterion.
  Tensor loss;
  // Where they were asked for, on the ranks that have the model's last part: its outputs for the
  // whole batch.
  Tensor outputs;
};

// Throws Error for a loss that no backward can start from; `what` begins the message.
void CheckLoss(const char* what, const Tensor& loss);

class Plugin {
 public:
  virtual ~Plugin() = default;

  virtual std::string name() const = 0;

  // Prepares `model` in place and returns the optimizer to train with: `optimizer` itself, or its
  // distributed form, owned by the plugin. Collective. Throws Error, before anything has changed,
  // when the combination cannot be exact.
  virtual optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) = 0;

  // What the loop calls instead of `criterion`, which may be null: the same loss, of what the
  // configured model puts out. After Configure.
  virtual Criterion ConfigureCriterion(Criterion criterion) { return criterion; }

  // Backward of one micro-batch. Collective where gradients are reduced inside backward.
  virtual void Backward(const Tensor& loss, optim::Optimizer& optimizer) = 0;

  // Forward and, with an optimizer, Backward of a batch, cut into micro-batches where the plugin
  // runs a pipeline; here it is one. Collective.
  virtual PipelineResult ExecutePipeline(const PipelineCall& call);

  // The ranks over which gradients are averaged, each of which has samples of its own; null: this
  // one alone, or a plugin that leaves the weights of unequal batches to its user. After Configure.
  virtual comm::GroupPtr data_group() const { return nullptr; }

  // For checkpoints, after Configure. All ranks that train the model together; null for one.
  virtual comm::GroupPtr group() const { return nullptr; }
  // What this rank's value of one of the model's parameters is of the whole one.
  virtual comm::Layout LayoutOf(const autograd::Parameter& parameter) const {
    return comm::Layout(parameter.shape());
  }
  // Null for plugins, and precisions, without a dynamic loss scale.
  virtual optim::LossScaler* loss_scaler() { return nullptr; }

  // While the returned handle lives, backward keeps gradients local. Ranks must agree.
  [[nodiscard]] virtual std::shared_ptr<void> NoSync() = 0;

  // Every save begins with it: a plugin whose ranks may differ in what they hold alike makes it the
  // same here (a mean, or one rank's), for a save takes parts of it from several ranks, and refuses
  // what differs. Collective.
  virtual void BeforeSave(optim::Optimizer& /*optimizer*/) {}

  // Expires when the plugin is destroyed.
  std::weak_ptr<const void> lifetime() const { return lifetime_.token(); }

 private:
  Lifetime lifetime_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_PLUGIN_H_
