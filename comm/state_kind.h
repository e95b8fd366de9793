// SPDX-License-Identifier: Apache-2.0

// What an optimizer state is, relative to the parameter it belongs to. optim/ declares it,
// checkpoint/ reads it, so that a state can be saved, resharded and loaded without either knowing
// the other.
//
//   view.AddState("exp_avg", StateKind::kElementwise);       // optim/param_view.h
//
// Shapes, for a logical parameter seen as B matrices of H rows and W columns (Layout::matrix()):
//   kElementwise   the parameter's shape; sharded like it
//   kRow           [B * H], one number per row
//   kColumn        [B * W], one number per column
//   kScalar        []
// of a shape that the optimizer states (StateSpec::shape), whole on every rank:
//   kBlockScale    one number per block of a quantized state, or one for the tensor
//   kLowRank       a moment of the projected gradient
//   kBasis         the orthonormal basis that gradients are projected on
//   kHistory       numbers of the last steps
// of a shape that the optimizer states, and different on every rank:
//   kPerRank       what this rank keeps for itself: the errors of its compressed messages
// and 8-bit codes, u8:
//   kCodes         as kElementwise
//   kLowRankCodes  as kLowRank
#ifndef APOGEE_COMM_STATE_KIND_H_
#define APOGEE_COMM_STATE_KIND_H_

#include <cstdint>

namespace apogee::comm {

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

// "elementwise", "row", "column", "scalar".
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

// Codes are u8; other states have the optimizer's compute dtype.
inline bool IsCodes(StateKind kind) {
  return kind == StateKind::kCodes || kind == StateKind::kLowRankCodes;
}
// The optimizer states the shape; it does not follow from the parameter's.
inline bool HasOwnShape(StateKind kind) {
  return kind >= StateKind::kBlockScale && kind != StateKind::kCodes;
}

}  // namespace apogee::comm

#endif  // APOGEE_COMM_STATE_KIND_H_
