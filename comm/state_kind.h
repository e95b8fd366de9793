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
#ifndef APOGEE_COMM_STATE_KIND_H_
#define APOGEE_COMM_STATE_KIND_H_

#include <cstdint>

namespace apogee::comm {

enum class StateKind : uint8_t { kElementwise, kRow, kColumn, kScalar };

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
  }
  return "?";
}

}  // namespace apogee::comm

#endif  // APOGEE_COMM_STATE_KIND_H_
