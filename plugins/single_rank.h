// SPDX-License-Identifier: Apache-2.0

// SingleRankPlugin: one rank, in f32, f64 or bf16 with fp32 masters.
//
//   SingleRankPlugin plugin({.precision = Precision::kBf16});
//   Booster booster(plugin);
//   auto boosted = booster.boost(model, optimizer);
//
// bf16: parameters and activations are bf16; gradients are computed and accumulated in f32; the
// optimizer updates f32 masters, made from the values the model had before, and rounds them into
// the parameters.
#ifndef APOGEE_PLUGINS_SINGLE_RANK_H_
#define APOGEE_PLUGINS_SINGLE_RANK_H_

#include <string>

#include "apogee/plugins/plugin.h"
#include "apogee/plugins/training_options.h"

namespace apogee {

class SingleRankPlugin : public Plugin {
 public:
  // One rank reduces nothing, so bucket_bytes and overlap have no effect. Throws Error listing
  // every wrong option; kFp16 is one, because this plugin has no loss scale.
  explicit SingleRankPlugin(const TrainingOptions& training = {});

  std::string name() const override { return "single_rank"; }
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  void Backward(const Tensor& loss, optim::Optimizer& optimizer) override;
  // There is nothing to synchronise: the handle does nothing.
  std::shared_ptr<void> NoSync() override;
  comm::GroupPtr group() const override { return nullptr; }
  comm::GroupPtr data_group() const override { return nullptr; }
  bool backward_is_only_kernels() const override { return true; }

 private:
  TrainingOptions training_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SINGLE_RANK_H_
