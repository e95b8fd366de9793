// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/dry_run.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "apogee/comm/dry/dry_launch.h"

namespace apogee::plan {

absl::StatusOr<std::vector<RankPlan>> DryRun(const DryRunOptions& options,
                                             const std::function<void(comm::World&)>& fn) {
  std::vector<RankPlan> plans;
  std::map<int, comm::Traffic> traffic;
  std::mutex mutex;
  const auto count = [&](int rank, const comm::CollectiveCall& call) {
    const std::lock_guard lock(mutex);
    traffic[rank].Add(call.kind, call.payload_bytes);
    if (options.on_call) options.on_call(rank, call);
  };
  const auto note = [&](comm::World& world) {
    fn(world);
    const std::lock_guard lock(mutex);
    plans.push_back({.rank = world.rank(),
                     .memory = world.context()->ledger().figures(),
                     .traffic = traffic[world.rank()]});
  };
  APOGEE_RETURN_IF_ERROR(comm::DryLaunch({.num_ranks = options.num_ranks,
                                          .ranks = options.ranks,
                                          .stand_in = options.stand_in,
                                          .threads_per_rank = options.threads_per_rank,
                                          .on_call = count},
                                         note));
  std::ranges::sort(plans, {}, &RankPlan::rank);
  return plans;
}

}  // namespace apogee::plan
