// SPDX-License-Identifier: Apache-2.0

// Mesh: ranks laid out along named axes, and the group of each axis.
//
//   Mesh mesh(world, {.dp = 2, .tp = 2});           // rank = dp * 2 + tp
//   mesh.group(Axis::kTp);                          // ranks that differ in tp only; null if one
//   mesh.group({Axis::kDp, Axis::kSp});             // a product of axes
//
// Axes, outermost first: pp (pipeline), dp (data), sp (sequence), ep (expert), tp (tensor). Nothing
// is global: a mesh belongs to one rank and is passed to the code that needs it.
#ifndef APOGEE_COMM_MESH_H_
#define APOGEE_COMM_MESH_H_

#include <array>
#include <map>
#include <vector>

#include "apogee/comm/launch.h"

namespace apogee::comm {

enum class Axis { kPp, kDp, kSp, kEp, kTp };
inline constexpr int kNumAxes = 5;
const char* AxisName(Axis axis);

struct MeshShape {
  int pp = 1, dp = 1, sp = 1, ep = 1, tp = 1;
};

class Mesh {
 public:
  // Every rank of the world must make the same mesh. Throws Error unless the product of the sizes
  // equals the world's size. `world` must outlive the mesh.
  Mesh(const World& world, const MeshShape& shape);

  int size(Axis axis) const { return sizes_[Index(axis)]; }
  // This rank's position along the axis.
  int coordinate(Axis axis) const { return coordinates_[Index(axis)]; }
  // The ranks that share this rank's coordinates on all other axes, in rank order. Null for one
  // rank. Asking twice gives the same object, so its traffic() counts the calls of all its users.
  GroupPtr group(Axis axis) const { return group(std::vector<Axis>{axis}); }
  GroupPtr group(const std::vector<Axis>& axes) const;

 private:
  static size_t Index(Axis axis) { return static_cast<size_t>(axis); }

  const World& world_;
  std::array<int, kNumAxes> sizes_;
  std::array<int, kNumAxes> coordinates_{};
  mutable std::map<std::vector<int>, GroupPtr> groups_;  // by members
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_MESH_H_
