// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/averaged/evaluation_weights.h"

#include <utility>

namespace apogee::optim {

EvaluationWeights::EvaluationWeights(Optimizer& optimizer) : optimizer_(optimizer) {
  if (!optimizer.traits().averages_weights) return;
  StepListeners& listeners = *optimizer.listeners();
  listeners.Tell(&StepListener::BeforeWeightsReplaced);
  // All memory is allocated before the first weight changes.
  std::vector<Tensor> averages;
  optimizer.ForEachView([&](ParamView& view, int group) {
    Tensor average = optimizer.Averaged(view, group);
    if (!average.defined()) return;
    averages.push_back(std::move(average));
    Tensor master = view.own_master();
    if (master.defined()) master = master.Clone(MemoryCategory::kOptimizerState);
    kept_.push_back({&view, view.value().Clone(MemoryCategory::kParameter), std::move(master)});
  });
  for (size_t i = 0; i < kept_.size(); ++i) {
    const ParamView& view = *kept_[i].view;
    view.value().CopyFrom(averages[i]);
    if (kept_[i].master.defined()) view.own_master().CopyFrom(averages[i]);
  }
  try {
    listeners.Tell(&StepListener::WeightsReplaced);
  } catch (...) {
    Restore();
    throw;
  }
  own_ = optimizer.AddListener(*this);
}

EvaluationWeights::~EvaluationWeights() {
  if (!optimizer_.traits().averages_weights) return;
  own_ = {};
  try {
    PutBack();
  } catch (const std::exception& error) {
    optimizer_.RefuseSteps(internal::Concat(
        "optimizer ", optimizer_.name(),
        ": the weights to evaluate could not be replaced by those in training: ", error.what(),
        "; resume from a checkpoint"));
  }
}

void EvaluationWeights::Restore() {
  for (const Kept& kept : kept_) {
    kept.view->value().CopyFrom(kept.value);
    if (kept.master.defined()) kept.view->own_master().CopyFrom(kept.master);
  }
}

void EvaluationWeights::PutBack() {
  StepListeners& listeners = *optimizer_.listeners();
  listeners.Tell(&StepListener::BeforeWeightsReplaced);
  Restore();
  listeners.Tell(&StepListener::WeightsReplaced);
}

void EvaluationWeights::Refuse(const char* call) const {
  Throw(call, ": the model has the weights to evaluate, which are not those that optimizer ",
        optimizer_.name(), " trains; destroy the handle of evaluation_weights first");
}

}  // namespace apogee::optim
