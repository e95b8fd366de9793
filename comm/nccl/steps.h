// SPDX-License-Identifier: Apache-2.0

// The steps of a collective on GPU tensors: NCCL moves data, and our kernels reduce it.
//
//   const Steps measured = MakeSteps(call, nullptr, rank, size);
//   const Tensor scratch = Tensor::Empty({measured.scratch_bytes}, DType::kU8, ...);
//   const Steps steps = MakeSteps(call, scratch.raw(), rank, size);
//
// A reduction gives every member an equal share of the elements. Each member receives its share of
// all inputs, reduces it with the tree that every backend uses (comm/tree_reduce.h), and sends the
// result to the others. A ring would send and receive as many bytes, but here every bit equals that
// of comm/local. A remainder that cannot be cut into shares, and all of a small tensor, goes whole
// to every member, and each reduces it by itself. Private to comm; knows nothing of CUDA.
#ifndef APOGEE_COMM_NCCL_STEPS_H_
#define APOGEE_COMM_NCCL_STEPS_H_

#include <cstdint>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/comm/nccl/operation.h"

namespace apogee::comm::nccl {

// Reduces `count` elements of every input; one input per member in the order of the group.
struct Reduction {
  std::vector<const void*> inputs;
  void* output = nullptr;
  int64_t count = 0;
};

struct Step {
  Call call;                          // without the stream and the functions
  std::vector<Reduction> reductions;  // after the call
};

struct Steps {
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    int64_t bytes = 0;
  };
  std::vector<Copy> copies;  // before all steps
  std::vector<Step> steps;
  int64_t scratch_bytes = 0;
};

// Tensors up to this size are not cut: one exchange is faster than two.
inline constexpr int64_t kWholeBytes = 16 << 10;

// The steps of a call with elements, for member `rank` of `size`; for send and recv, of the pair.
// `scratch`: scratch_bytes of memory, aligned to 16 bytes; null: only to find out scratch_bytes.
Steps MakeSteps(const CollectiveCall& call, void* scratch, int rank, int size);

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_STEPS_H_
