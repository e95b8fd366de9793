// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/single_rank.h"

#include "apogee/plugins/precision.h"

namespace apogee {

SingleRankPlugin::SingleRankPlugin(const TrainingOptions& training) : training_(training) {
  std::string errors;
  CheckTrainingOptions(training, errors);
  if (training.precision == Precision::kFp16) {
    errors +=
        "\n  precision fp16 needs a loss scale, which the ddp plugin has: DdpPlugin(nullptr, "
        "{.precision = Precision::kFp16})";
  }
  APOGEE_CHECK(errors.empty(), "single_rank plugin: invalid options:", errors);
}

optim::Optimizer& SingleRankPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  ApplyPrecision(PrecisionPolicy(training_, model), model, optimizer);
  optim::StepOptions step_options = optimizer.step_options();
  if (training_.max_norm > 0) step_options.max_norm = training_.max_norm;
  optimizer.set_step_options(step_options);
  return optimizer;
}

void SingleRankPlugin::Backward(const Tensor& loss, optim::Optimizer& optimizer) {
  optimizer.listeners()->Tell(&StepListener::BeforeBackward);
  if (optimizer.traits().fused_backward) return optimizer.fused_backward(loss);
  autograd::Backward(loss);
}

std::shared_ptr<void> SingleRankPlugin::NoSync() { return nullptr; }

}  // namespace apogee
