// SPDX-License-Identifier: Apache-2.0

// Fingerprint: the part of a call that the members of a group compare before data moves, and that
// messages show.
//
//   Fingerprint mine(call);
//   if (!mine.Matches(theirs)) Fail(mine.ToString() + " where " + theirs.ToString());
//
// Private to comm.
#ifndef APOGEE_COMM_FINGERPRINT_H_
#define APOGEE_COMM_FINGERPRINT_H_

#include <cstdint>
#include <string>

#include "apogee/comm/group.h"

namespace apogee::comm {

struct Fingerprint {
  static constexpr int64_t kUneven = -1;

  Fingerprint() = default;
  explicit Fingerprint(const CollectiveCall& call);

  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  // Below: those of the input, or of the output if there is no input.
  bool has_tensor = false;
  DType dtype = DType::kF32;
  int64_t numel = 0;  // kUneven: members have numbers of their own
  // Whether the tensor is on a GPU and is not staged through the host. Not part of the text.
  bool on_gpu = false;

  // For example "all_reduce(sum, 1024 x f32)" or "broadcast(root 2, ...)".
  std::string ToString() const;
  // Whether members may make these two calls together. Send matches recv.
  bool Matches(const Fingerprint& other) const;
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_FINGERPRINT_H_
