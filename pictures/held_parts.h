// SPDX-License-Identifier: Apache-2.0

// ExchangeHeldParts: tells every rank which elements every rank holds of every parameter.
// ShardMapSvg draws them.
//
//   std::vector<std::vector<HeldPart>> parts = ExchangeHeldParts(optimizer, world.group());
//   parts[1][0].segments;      // the elements that rank 1 holds of the first parameter
#ifndef APOGEE_PICTURES_HELD_PARTS_H_
#define APOGEE_PICTURES_HELD_PARTS_H_

#include <vector>

#include "apogee/comm/group.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

// The elements that one rank holds of one parameter. `padding`: elements in the rank's shard beyond
// them.
struct HeldPart {
  int64_t padding = 0;
  std::vector<Segment> segments;
};
// Returns parts[rank][parameter] for all ranks. Collective over `group` (null: one rank). Throws
// Error when ranks hold different parameters.
std::vector<std::vector<HeldPart>> ExchangeHeldParts(const optim::Optimizer& optimizer,
                                                     const comm::GroupPtr& group);

}  // namespace apogee

#endif  // APOGEE_PICTURES_HELD_PARTS_H_
