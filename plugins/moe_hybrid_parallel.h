// SPDX-License-Identifier: Apache-2.0

// MoeHybridParallelPlugin: HybridParallelPlugin for models with a mixture of experts, which boost
// demands. With ep_size the experts are sharded over data-parallel ranks.
//
//   MoeHybridParallelPlugin plugin(world, {.max_norm = 1.0}, {.ep_size = 4, .stage = 1});
//   Booster booster(plugin);
//   auto boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
//
// docs/moe.md says what a model with experts computes.
#ifndef APOGEE_PLUGINS_MOE_HYBRID_PARALLEL_H_
#define APOGEE_PLUGINS_MOE_HYBRID_PARALLEL_H_

#include <string>

#include "apogee/plugins/hybrid_parallel.h"

namespace apogee {

class MoeHybridParallelPlugin : public HybridParallelPlugin {
 public:
  using HybridParallelPlugin::HybridParallelPlugin;
  std::string name() const override { return "moe_hybrid_parallel"; }
  // Throws Error for a model without nn::Moe, besides those of HybridParallelPlugin.
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_MOE_HYBRID_PARALLEL_H_
