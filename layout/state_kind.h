// SPDX-License-Identifier: Apache-2.0

// StateKind: the shape and sharding of an optimizer state relative to its parameter. optim/
// declares the kind and checkpoint/ reads it. So checkpoint/ can save, reshard and load a state
// without knowing the optimizer.
//
//   view.AddState("exp_avg", StateKind::kElementwise);       // optim/param_view.h
//
// Shapes, for a logical parameter seen as B matrices of H rows and W columns (Layout::matrix()):
//   kElementwise   the parameter's shape; sharded like it
//   kRow           [B * H], one number per row
//   kColumn        [B * W], one number per column
//   kScalar        []
// Whole on every rank, with a shape that the optimizer declares (StateSpec::shape):
//   kBlockScale    one number per block of a quantized state, or one for the tensor
//   kLowRank       a moment of the projected gradient
//   kBasis         the orthonormal basis that gradients are projected on
//   kHistory       numbers of the last steps
// Different on every rank, with a shape that the optimizer declares:
//   kPerRank       private to a rank: the errors of its compressed messages
// 8-bit codes, u8:
//   kCodes         as kElementwise
//   kLowRankCodes  as kLowRank
#ifndef APOGEE_LAYOUT_STATE_KIND_H_
#define APOGEE_LAYOUT_STATE_KIND_H_

#include <cstdint>

namespace apogee {

enum class StateKind : uint8_t {
  kElementwise,
  kRow,
  kColumn,
  kScalar,
  kBlockScale,
  kLowRank,
  kBasis,
  kHistory,
  kCodes,
  kLowRankCodes,
  kPerRank
};

// For example "elementwise", "block_scale".
inline const char* StateKindName(StateKind kind) {
  switch (kind) {
    case StateKind::kElementwise:
      return "elementwise";
    case StateKind::kRow:
      return "row";
    case StateKind::kColumn:
      return "column";
    case StateKind::kScalar:
      return "scalar";
    case StateKind::kBlockScale:
      return "block_scale";
    case StateKind::kLowRank:
      return "low_rank";
    case StateKind::kBasis:
      return "basis";
    case StateKind::kHistory:
      return "history";
    case StateKind::kCodes:
      return "codes";
    case StateKind::kLowRankCodes:
      return "low_rank_codes";
    case StateKind::kPerRank:
      return "per_rank";
  }
  return "?";
}

// Whether the state is u8 codes; other states have the optimizer's compute dtype.
inline bool IsCodes(StateKind kind) {
  return kind == StateKind::kCodes || kind == StateKind::kLowRankCodes;
}
// Whether the optimizer declares the shape; other shapes follow from the parameter's.
inline bool HasOwnShape(StateKind kind) {
  return kind >= StateKind::kBlockScale && kind != StateKind::kCodes;
}

}  // namespace apogee

#endif  // APOGEE_LAYOUT_STATE_KIND_H_
