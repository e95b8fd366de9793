// SPDX-License-Identifier: Apache-2.0

// What every rank holds of every parameter, on every rank: what a picture of the plan is drawn
// from.
//
//   std::vector<std::vector<PlanPart>> parts = ExchangePlanParts(optimizer, world.group());
//   parts[1][0].segments;      // what rank 1 holds of the first parameter
#ifndef APOGEE_PLUGINS_PLAN_PARTS_H_
#define APOGEE_PLUGINS_PLAN_PARTS_H_

#include <vector>

#include "apogee/comm/group.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

// What one rank holds of one parameter.
struct PlanPart {
  int64_t padding = 0;
  std::vector<comm::Segment> segments;
};
// parts[rank][parameter] of all ranks. Collective over `group` (null: one rank). Throws Error when
// ranks hold different parameters.
std::vector<std::vector<PlanPart>> ExchangePlanParts(const optim::Optimizer& optimizer,
                                                     const comm::GroupPtr& group);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_PLAN_PARTS_H_
