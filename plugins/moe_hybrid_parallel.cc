// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/moe_hybrid_parallel.h"

#include "apogee/nn/moe/moe.h"

namespace apogee {

optim::Optimizer& MoeHybridParallelPlugin::Configure(nn::Module& model,
                                                     optim::Optimizer& optimizer) {
  APOGEE_CHECK(!nn::MoeLayers(model).empty(),
               "moe_hybrid_parallel: the model has no mixture of experts (nn::Moe); use "
               "HybridParallelPlugin");
  return HybridParallelPlugin::Configure(model, optimizer);
}

}  // namespace apogee
