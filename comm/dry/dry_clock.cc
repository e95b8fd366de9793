// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/dry/dry_clock.h"

#include <algorithm>

#include "apogee/comm/dry/dry_world.h"

namespace apogee::comm::dry {

CollectiveCost DryWorld::Price(const GroupState& state, int rank, const CollectiveCall& call,
                               const std::vector<int>& pair, Operation& operation) const {
  if (options_.clock == nullptr) return {};
  const int world_rank = state.members[static_cast<size_t>(rank)];
  std::vector<int> members;
  for (const int member : pair) members.push_back(state.members[static_cast<size_t>(member)]);
  const CollectiveCost cost = options_.clock->CostOf(call, pair.empty() ? state.members : members);
  if (!cost.overlaps) options_.clock->Work(world_rank, cost.seconds);
  operation.begin = std::max(operation.begin, options_.clock->Now(world_rank));
  return cost;
}

void DryWorld::WaitInTime(const GroupState& state, int rank, const Operation& operation) const {
  if (options_.clock == nullptr) return;
  options_.clock->WaitUntil(state.members[static_cast<size_t>(rank)], operation.end);
}

}  // namespace apogee::comm::dry
