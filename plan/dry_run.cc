// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/dry_run.h"

#include <algorithm>
#include <mutex>
#include <numeric>

#include "apogee/comm/dry/dry_launch.h"
#include "apogee/plan/step_clock.h"

namespace apogee::plan {

void BeginStep(const comm::World& world) {
  auto* const rank = dynamic_cast<StepClock::Rank*>(world.context()->kernel_listener());
  if (rank != nullptr) rank->Mark();
}

absl::StatusOr<std::vector<RankPlan>> DryRun(const DryRunOptions& options,
                                             const std::function<void(comm::World&)>& fn) {
  std::vector<int> ranks = options.ranks;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(std::max(0, options.num_ranks)));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  StepClock clock(options.machine, ranks);
  std::vector<RankPlan> plans;
  std::mutex mutex;
  const auto count = [&](int rank, const comm::CollectiveCall& call) {
    clock.Of(rank).OnCall(call);
    if (!options.on_call) return;
    const std::lock_guard lock(mutex);
    options.on_call(rank, call);
  };
  const auto note = [&](comm::World& world) {
    StepClock::Rank& rank = clock.Of(world.rank());
    world.context()->set_kernel_listener(&rank);
    fn(world);
    world.context()->set_kernel_listener(nullptr);
    const Progress step = rank.since_mark();
    const std::lock_guard lock(mutex);
    plans.push_back(
        {.rank = world.rank(),
         .memory = world.context()->ledger().figures(),
         .traffic = rank.progress().traffic,
         .step = {.seconds = step.seconds, .flops = step.flops, .traffic = step.traffic}});
  };
  APOGEE_RETURN_IF_ERROR(comm::DryLaunch({.num_ranks = options.num_ranks,
                                          .ranks = options.ranks,
                                          .stand_in = options.stand_in,
                                          .threads_per_rank = options.threads_per_rank,
                                          .on_call = count,
                                          .clock = &clock},
                                         note));
  std::ranges::sort(plans, {}, &RankPlan::rank);
  if (options.machine != nullptr && options.machine->shares_cores()) {
    // Each rank that ran stands for equally many.
    std::vector<Busy> busy;
    for (const int rank : ranks) {
      const std::vector<Busy> own = clock.Of(rank).busy();
      for (size_t i = 0; i < static_cast<size_t>(options.num_ranks) / ranks.size(); ++i) {
        busy.insert(busy.end(), own.begin(), own.end());
      }
    }
    const double extra = CrowdedSeconds(busy, *options.machine);
    for (RankPlan& plan : plans) plan.step.seconds += extra;
  }
  return plans;
}

}  // namespace apogee::plan
