// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/single_rank.h"

#include "apogee/optim/step/fused_backward.h"
#include "apogee/plugins/precision.h"

namespace apogee {
SingleRankPlugin::SingleRankPlugin(const SingleRankOptions& options) : options_(options) {
  std::string errors;
  dtype_ = ParsePrecision(options.precision, errors);
  CheckMaxNorm(options.max_norm, errors);
  if (dtype_ == DType::kF16) {
    errors +=
        "\n  precision fp16 needs a loss scale, which the ddp plugin has: DdpPlugin(nullptr, "
        "{.precision = \"fp16\"})";
  }
  APOGEE_CHECK(errors.empty(), "single_rank plugin: invalid options:", errors);
}

optim::Optimizer& SingleRankPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  ApplyPrecision(dtype_, model, optimizer);
  optim::StepOptions step_options = optimizer.step_options();
  if (options_.max_norm > 0) step_options.max_norm = options_.max_norm;
  optimizer.set_step_options(step_options);
  return optimizer;
}

void SingleRankPlugin::Backward(const Tensor& loss, optim::Optimizer& optimizer) {
  if (auto* fused = dynamic_cast<optim::FusedBackwardOptimizer*>(&optimizer)) {
    return fused->fused_backward(loss);
  }
  autograd::Backward(loss);
}

std::shared_ptr<void> SingleRankPlugin::NoSync() { return nullptr; }

}  // namespace apogee
