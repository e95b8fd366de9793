// SPDX-License-Identifier: Apache-2.0

// The distributed forms of the optimizers: the same classes. Every optimizer of the registry is
// written once, with its statistics of whole tensors declared (optimizer.h); binding its views to
// shards and its statistics to a group is all that distributing it takes, and LowLevelZeroPlugin
// does that at boost to whatever optimizer it is given, in place: groups, options, states,
// subclasses and the schedulers that point to it stay as they are.
//
//   optim::DistributedAdafactor optimizer(model.Parameters(), {.lr = 1e-3, .relative_step =
//   false}); LowLevelZeroPlugin plugin(world.group(), {.stage = 2}); Booster(plugin).boost(model,
//   optimizer);                 // as with optim::Adafactor
//
// The names are for programs that say what they mean, or come from ColossalAI; MakeOptimizer takes
// "distributed_" before any name.
#ifndef APOGEE_OPTIM_DISTRIBUTED_H_
#define APOGEE_OPTIM_DISTRIBUTED_H_

#include "apogee/optim/adafactor.h"
#include "apogee/optim/came.h"
#include "apogee/optim/galore_adafactor.h"
#include "apogee/optim/galore_adamw.h"
#include "apogee/optim/galore_adamw8bit.h"
#include "apogee/optim/lamb.h"

namespace apogee::optim {

using DistributedAdafactor = Adafactor;
using DistributedCame = Came;
using DistributedLamb = Lamb;
using DistributedGaLore = GaLoreAdamW;
using DistributedGaLore8bit = GaLoreAdamW8bit;
using DistributedGaLoreAdafactor = GaLoreAdafactor;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_DISTRIBUTED_H_
