// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/mesh.h"

#include <string>

namespace apogee::comm {

const char* AxisName(Axis axis) {
  static constexpr const char* kNames[] = {"pp", "dp", "sp", "ep", "tp"};
  return kNames[static_cast<size_t>(axis)];
}

Mesh::Mesh(const World& world, const MeshShape& shape)
    : world_(world), sizes_{shape.pp, shape.dp, shape.sp, shape.ep, shape.tp} {
  int product = 1;
  std::string text;
  for (size_t i = 0; i < kNumAxes; ++i) {
    const char* name = AxisName(static_cast<Axis>(i));
    APOGEE_CHECK(sizes_[i] >= 1, "mesh: axis ", name, " has size ", sizes_[i],
                 ", must be at least 1");
    product *= sizes_[i];
    text += (i > 0 ? " x " : "") + std::string(name) + " " + std::to_string(sizes_[i]);
  }
  APOGEE_CHECK(product == world.size(), "mesh: ", text, " = ", product,
               " ranks, but the world has ", world.size());
  int rest = world.rank();
  for (size_t i = kNumAxes; i-- > 0;) {
    coordinates_[i] = rest % sizes_[i];
    rest /= sizes_[i];
  }
}

GroupPtr Mesh::group(const std::vector<Axis>& axes) const {
  std::array<bool, kNumAxes> free{};
  for (Axis axis : axes) free[Index(axis)] = true;
  std::vector<int> members;
  for (int rank = 0; rank < world_.size(); ++rank) {
    int rest = rank;
    bool member = true;
    for (size_t i = kNumAxes; i-- > 0;) {
      member = member && (free[i] || rest % sizes_[i] == coordinates_[i]);
      rest /= sizes_[i];
    }
    if (member) members.push_back(rank);
  }
  const auto [known, is_new] = groups_.emplace(members, nullptr);
  if (is_new) known->second = world_.NewGroup(members);
  return known->second;
}

}  // namespace apogee::comm
