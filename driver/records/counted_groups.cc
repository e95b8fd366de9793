// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/records/counted_groups.h"

namespace apogee::driver {

CountedGroups::CountedGroups(const comm::World& world)
    : counted_(
          world.rank(), world.size(), world.context(),
          [this, &world](const std::vector<int>& members) {
            return groups_[members] = world.NewGroup(members);
          },
          world.trace()) {}

report::TrafficRecord CountedGroups::Count(const comm::GroupPtr& another) const {
  report::TrafficRecord record;
  for (int i = 0; i < comm::kNumCollectiveKinds; ++i) {
    const auto kind = static_cast<comm::CollectiveKind>(i);
    auto& row = record.rows.emplace_back();
    row.collective = comm::CollectiveName(kind);
    const auto add = [&](const comm::GroupPtr& group) {
      if (group == nullptr) return;
      row.calls += group->traffic().calls(kind);
      row.bytes += group->traffic().bytes(kind);
    };
    for (const auto& [members, group] : groups_) add(group);
    add(another);
  }
  return record;
}

report::TrafficRecord CountedBetween(const report::TrafficRecord& begin,
                                     const report::TrafficRecord& end, int64_t steps) {
  report::TrafficRecord between{.steps = steps, .rows = {}};
  for (size_t i = 0; i < end.rows.size(); ++i) {
    const auto& row = end.rows[i];
    const int64_t calls = row.calls - begin.rows[i].calls;
    if (calls > 0) between.rows.push_back({row.collective, calls, row.bytes - begin.rows[i].bytes});
  }
  return between;
}

}  // namespace apogee::driver
