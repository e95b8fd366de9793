// SPDX-License-Identifier: Apache-2.0

// What the members of a group compare before data moves, and what messages show of a call.
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
  Fingerprint() = default;
  explicit Fingerprint(const CollectiveCall& call);

  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  // The input, or the output where there is none.
  bool has_tensor = false;
  DType dtype = DType::kF32;
  int64_t numel = 0;
  // Of a GPU, and not staged through the host. Not part of the text.
  bool on_gpu = false;

  // "all_reduce(sum, 1024 x f32)", "broadcast(root 2, ...)".
  std::string ToString() const;
  // Whether members may call the two together. Send matches recv.
  bool Matches(const Fingerprint& other) const;
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_FINGERPRINT_H_
