// SPDX-License-Identifier: Apache-2.0

// DdpPlugin: data parallelism. Every rank holds the whole model and a part of each batch. Gradients
// are averaged over the ranks inside backward.
//
//   comm::launch({.num_ranks = 4}, [&](comm::World& world) {
//     ... model, optimizer, loader of this rank's part of the batch ...
//     DdpPlugin plugin(world.group(), {.precision = Precision::kBf16, .max_norm = 1.0});
//     Booster booster(plugin);
//     auto boosted = booster.boost(model, optimizer);
//     ... the ordinary loop ...
//   });
//
// The update equals that of one rank with the whole batch, when the batch is split evenly and the
// loss is a mean over samples. A gradient that is absent on every rank stays absent; one that is
// absent on some ranks counts as zero there.
//
// To accumulate, either let every backward reduce, or run all but the last under booster.no_sync(),
// which is faster. An optimizer that updates inside backward (LOMO, AdaLomo) does so on one rank.
// On several ranks its update runs in step(), on the averaged gradients.
//
// Optimizers with 1-bit messages (optim/core/local_gradients.h) need each rank's own gradients in
// some steps. In these steps gradients are not averaged here, and Parameter::grad() is this rank's.
// 0/1 Adam lets the ranks' weights differ for some steps. The first forward in evaluation mode
// makes them equal again, so all ranks must call it. See docs/compressed_communication.md.
//
// Gradients of matrices that GaLore projects are averaged later, too: Parameter::grad() stays this
// rank's own, and step() averages the projection. Only a refresh of the basis averages the whole
// gradient. This needs max_norm 0, here and in the optimizer's step options, for as long as
// training runs. In reproducible mode, and for matrices with 8-bit moments, backward averages whole
// gradients.
#ifndef APOGEE_PLUGINS_DDP_H_
#define APOGEE_PLUGINS_DDP_H_

#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/optim/options.h"
#include "apogee/plugins/data_parallel.h"
#include "apogee/plugins/training_options.h"

namespace apogee {

struct CutParameters;

struct DdpOptions {
  // Sums do not depend on the number of ranks: 2^k micro-batches of one size give the same bits on
  // 1, 2, 4, … ranks. Each rank must have consecutive micro-batches and equally many threads.
  bool reproducible = false;
  static std::vector<optim::OptionField<DdpOptions>> Fields();
};

class DdpPlugin : public DataParallelPlugin {
 public:
  // `group`: the ranks to average over; null for one rank. Throws Error listing every bad option.
  explicit DdpPlugin(comm::GroupPtr group, const TrainingOptions& training = {},
                     const DdpOptions& options = {});
  // Internal: for a plugin that has cut the parameters (plugins/sharding/cut_parameters.h).
  DdpPlugin(comm::GroupPtr group, const TrainingOptions& training, const DdpOptions& options,
            const CutParameters& cut);

  std::string name() const override { return "ddp"; }
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_DDP_H_
