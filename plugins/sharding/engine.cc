// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/sharding/engine.h"

#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"

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
      dtype_(DTypeOf(training.precision)),
      guard_(plugin_, training) {}

void DataParallelEngine::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  APOGEE_CHECK(!configured_, plugin_,
               ": the plugin runs another model already; make one plugin per model");
  if (!is_cut()) CheckWhole(plugin_, model);
  CheckPrecision(dtype_, optimizer);
}

void DataParallelEngine::Backward(const Tensor& loss) {
  const bool reduce = BeginBackward();
  RunPass([&] { autograd::Backward(loss, {.grad = guard_.LossGradient(loss)}); },
          {.reduce = reduce});
}

void DataParallelEngine::AttachTo(optim::Optimizer& optimizer) {
  guard_.Attach(optimizer);
  hooks_.emplace_back(optimizer.AddPreStepHook([this](auto& stepped) { BeforeStep(stepped); }));
  hooks_.emplace_back(optimizer.AddStepHook([this](auto& stepped) { AfterStep(stepped); }));
  configured_ = true;
}

void DataParallelEngine::SumStatistics(optim::Optimizer& optimizer,
                                       const comm::GroupPtr& without_cut) const {
  optim::SumStatistics(optimizer, is_cut() ? cut_.statistics_group : without_cut);
}

}  // namespace apogee
