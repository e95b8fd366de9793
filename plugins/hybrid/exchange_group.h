// SPDX-License-Identifier: Apache-2.0

// The group in which ranks exchange activations along an axis, inside forward and backward.
//
//   const comm::GroupPtr sp = ExchangeGroup(mesh, comm::Axis::kSp);
#ifndef APOGEE_PLUGINS_HYBRID_EXCHANGE_GROUP_H_
#define APOGEE_PLUGINS_HYBRID_EXCHANGE_GROUP_H_

#include <chrono>

#include "apogee/comm/mesh.h"

namespace apogee {

// Returns the mesh's group, or a duplicate if gradients are averaged over the same ranks. Such an
// average starts later on a rank without a gradient, so in one group ranks would call collectives
// in different orders. Collective. The axis must have several ranks.
inline comm::GroupPtr ExchangeGroup(const comm::Mesh& mesh, comm::Axis axis) {
  constexpr std::chrono::seconds kTimeout{60};
  const comm::GroupPtr group = mesh.group(axis);
  using enum comm::Axis;
  const bool averages = group == mesh.group({kDp, kSp, kEp}) || group == mesh.group({kDp, kSp});
  return averages ? group->Duplicate(kTimeout) : group;
}

}  // namespace apogee

#endif  // APOGEE_PLUGINS_HYBRID_EXCHANGE_GROUP_H_
