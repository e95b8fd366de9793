// SPDX-License-Identifier: Apache-2.0

// What a collective on tensors of a GPU is made of: NCCL moves, kernels of ours reduce.
//
//   const Steps measured = MakeSteps(call, nullptr, rank, size);
//   const Tensor scratch = Tensor::Empty({measured.scratch_bytes}, DType::kU8, ...);
//   const Steps steps = MakeSteps(call, scratch.raw(), rank, size);
//
// A reduction gives every member an equal share of the elements. A member gets its share of
// everybody's input, reduces it with the tree of every backend (comm/tree_reduce.h) and passes the
// result on: what a ring sends and receives, but every bit is that of comm/local. The elements
// behind the shares, fewer than it takes to cut them, and all of a small tensor, go to every member
// whole, which reduces them by itself. Private to comm; knows nothing of CUDA.
#ifndef APOGEE_COMM_NCCL_STEPS_H_
#define APOGEE_COMM_NCCL_STEPS_H_

#include <cstdint>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/comm/nccl/operation.h"

namespace apogee::comm::nccl {

// `count` elements of every input, one per member in the order of the group.
struct Reduction {
  std::vector<const void*> inputs;
  void* output = nullptr;
  int64_t count = 0;
};

struct Step {
  Call call;                          // but for the stream and the functions
  std::vector<Reduction> reductions;  // behind it
};

struct Steps {
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    int64_t bytes = 0;
  };
  std::vector<Copy> copies;  // in front of all
  std::vector<Step> steps;
  int64_t scratch_bytes = 0;
};

// Tensors up to this size are not cut: one exchange is faster than two.
inline constexpr int64_t kWholeBytes = 16 << 10;

// Of a call with elements, for member `rank` of `size`; of send and recv, of the two. `scratch`: of
// scratch_bytes, aligned to 16; null to learn how many these are.
Steps MakeSteps(const CollectiveCall& call, void* scratch, int rank, int size);

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_STEPS_H_
