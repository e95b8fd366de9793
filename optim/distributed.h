// SPDX-License-Identifier: Apache-2.0

// ColossalAI's names of the distributed optimizers. They are the same classes: every optimizer here
// is written once and declares its statistics of whole tensors (optimizer.h). To distribute it,
// LowLevelZeroPlugin binds its views to shards and its statistics to a group at boost, in place.
// Groups, options, states, subclasses and schedulers that point to the optimizer stay as they are.
//
//   optim::DistributedAdafactor optimizer(model.Parameters(),
//                                         {.lr = 1e-3, .relative_step = false});
//   LowLevelZeroPlugin plugin(world.group(), {}, {.stage = 2});
//   Booster(plugin).boost(model, optimizer);                 // as with optim::Adafactor
//
// MakeOptimizer accepts the prefix "distributed_" before any name.
#ifndef APOGEE_OPTIM_DISTRIBUTED_H_
#define APOGEE_OPTIM_DISTRIBUTED_H_

#include "apogee/optim/adam/lamb.h"
#include "apogee/optim/factored/adafactor.h"
#include "apogee/optim/factored/came.h"
#include "apogee/optim/lowrank/galore_adafactor.h"
#include "apogee/optim/lowrank/galore_adamw.h"
#include "apogee/optim/lowrank/galore_adamw8bit.h"

namespace apogee::optim {

using DistributedAdafactor = Adafactor;
using DistributedCame = Came;
using DistributedLamb = Lamb;
using DistributedGaLore = GaLoreAdamW;
using DistributedGaLore8bit = GaLoreAdamW8bit;
using DistributedGaLoreAdafactor = GaLoreAdafactor;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_DISTRIBUTED_H_
