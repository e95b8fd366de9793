// SPDX-License-Identifier: Apache-2.0

// CountedGroups: a rank's world whose traffic is counted over all of its groups.
//
//   const CountedGroups groups(world);
//   Train(groups.world());
//   groups.Count(plugin.gather_group());     // calls and bytes of each collective so far
//
// Groups are the same as those of the world itself. Duplicates of a group are not counted.
#ifndef APOGEE_DRIVER_RECORDS_COUNTED_GROUPS_H_
#define APOGEE_DRIVER_RECORDS_COUNTED_GROUPS_H_

#include <map>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/report/files/run_record.h"

namespace apogee::driver {

class CountedGroups {
 public:
  // `world` must outlive it.
  explicit CountedGroups(const comm::World& world);
  CountedGroups(const CountedGroups&) = delete;
  CountedGroups& operator=(const CountedGroups&) = delete;

  const comm::World& world() const { return counted_; }
  // A row per kind of collective, those without calls too. `steps` of the result is 0. `another`: a
  // group to count, too; may be null.
  report::TrafficRecord Count(const comm::GroupPtr& another) const;

 private:
  std::map<std::vector<int>, comm::GroupPtr> groups_;  // by members
  comm::World counted_;
};

// What was counted between two counts, without the collectives that had no calls.
report::TrafficRecord CountedBetween(const report::TrafficRecord& begin,
                                     const report::TrafficRecord& end, int64_t steps);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_RECORDS_COUNTED_GROUPS_H_
