// SPDX-License-Identifier: Apache-2.0

// PlaceAmong: the check of a group's members, for every backend. Private to comm.
#ifndef APOGEE_COMM_MEMBERS_H_
#define APOGEE_COMM_MEMBERS_H_

#include <algorithm>
#include <vector>

#include "apogee/core/error.h"

namespace apogee::comm {

// The place of world rank `rank` among `members`. Throws Error if the members are not a valid group
// of a world of `size`, or if `rank` is not one of them.
inline int PlaceAmong(const std::vector<int>& members, int rank, int size) {
  for (const int member : members) {
    APOGEE_CHECK(member >= 0 && member < size, "group: rank ", member, " is outside a world of ",
                 size);
    APOGEE_CHECK(std::count(members.begin(), members.end(), member) == 1, "group: rank ", member,
                 " is named twice");
  }
  const auto own = std::find(members.begin(), members.end(), rank);
  APOGEE_CHECK(own != members.end(), "group: rank ", rank,
               " is not a member; only members make a group");
  return static_cast<int>(own - members.begin());
}

}  // namespace apogee::comm

#endif  // APOGEE_COMM_MEMBERS_H_
