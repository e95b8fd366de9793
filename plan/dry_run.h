// SPDX-License-Identifier: Apache-2.0

// DryRun: the memory and the traffic of a run, before it starts. Call it with the function that you
// give to launch():
//
//   auto train = [&](comm::World& world) { ... model, plugin, boost, two steps ... };
//   APOGEE_ASSIGN_OR_RETURN(const auto ranks, plan::DryRun({.num_ranks = 8}, train));
//   ranks[0].memory.peak_total_bytes;                       // as the ledger of rank 0 will have it
//   OkOrThrow(comm::launch({.num_ranks = 8}, train));
//
// The code that runs is the same: modules, plugin, optimizer, allocator, and the ledger. Only the
// loops of kernels do not run, and large tensors take no memory (DeviceContext::is_dry). So every
// module, optimizer and plugin is priced, yours among them. Two steps are enough: in the first one
// states are made, and the second one has them from its start.
//
// A dry run computes no values. Values that the host writes into small tensors are right. Reading a
// value of a graph (loss.Item()) throws Error: leave it out if world.context()->is_dry(). Sizes
// that depend on computed values cannot be priced. The booster's saves write no file in a dry
// run, and their memory is not part of the price. Your function's own files are written in the dry
// run, too.
//
// The memory is that of ranks on CPUs. GPUs need other scratch memory.
//
// With a machine (machine/machine.h), ranks also have a virtual time: kernels and collectives
// advance it, overlap and the waiting of pipeline stages come from the code that runs. Call
// BeginStep at the start of the last step, so that the first one is not part of its price.
#ifndef APOGEE_PLAN_DRY_RUN_H_
#define APOGEE_PLAN_DRY_RUN_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/core/memory.h"
#include "apogee/plan/machine/machine.h"

namespace apogee::plan {

struct DryRunOptions {
  int num_ranks = 1;
  // The CPU threads of a rank. Kernels have scratch memory for each thread.
  int threads_per_rank = 1;
  // The ranks that run, ascending; empty: all. In large worlds choose one of each role, such as the
  // first rank of every pipeline stage. The others get the messages of `stand_in`.
  std::vector<int> ranks = {};
  // Maps a rank that does not run to the rank of its role in `ranks`. Null: each group uses its
  // first running member.
  std::function<int(int rank)> stand_in = nullptr;
  // Gets every call of a rank's collectives, on the rank's own thread. Null: nobody.
  std::function<void(int rank, const comm::CollectiveCall& call)> on_call = nullptr;
  // Must outlive the call. Null: time stands still.
  const Machine* machine = nullptr;
};

struct RankPlan {
  int rank = 0;
  MemoryFigures memory = {};   // of the rank's context, after `fn` has returned
  comm::Traffic traffic = {};  // of all its groups together
  // Since BeginStep, or since the launch.
  struct Step {
    double seconds = 0;  // 0 without a machine
    double flops = 0;    // of products, convolutions and attention
    comm::Traffic traffic = {};
  } step = {};
};

// The step to be priced begins, for this rank. Does nothing in a real run.
void BeginStep(const comm::World& world);

// Blocks until all ranks have ended. Returns one entry for each rank that ran. Errors are those of
// launch(): what `fn` throws is a status that names the rank.
absl::StatusOr<std::vector<RankPlan>> DryRun(const DryRunOptions& options,
                                             const std::function<void(comm::World&)>& fn);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_DRY_RUN_H_
