// SPDX-License-Identifier: Apache-2.0

// SingleRankPlugin: one rank, in f32, f64 or bf16 with fp32 masters.
//
//   SingleRankPlugin plugin({.precision = "bf16"});
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

namespace apogee {

struct SingleRankOptions {
  // "f32" (also "fp32"), "bf16", or "f64" for proofs on the CPU.
  std::string precision = "f32";
  // Clip the global L2 norm of the gradients to this. 0: use the optimizer's step options.
  double max_norm = 0;
};

class SingleRankPlugin : public Plugin {
 public:
  // Throws Error listing every wrong option.
  explicit SingleRankPlugin(const SingleRankOptions& options = {});

  std::string name() const override { return "single_rank"; }
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  void Backward(const Tensor& loss, optim::Optimizer& optimizer) override;
  // There is nothing to synchronise: the handle does nothing.
  std::shared_ptr<void> NoSync() override;
  comm::GroupPtr group() const override { return nullptr; }
  comm::GroupPtr data_group() const override { return nullptr; }
  bool backward_is_only_kernels() const override { return true; }

 private:
  SingleRankOptions options_;
  DType dtype_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SINGLE_RANK_H_
