// SPDX-License-Identifier: Apache-2.0

// The reduction of every backend: a balanced binary tree over the ranks, ((r0 + r1) + (r2 + r3)) +
// ..., in f32 (f64 for f64), rounded once. Backends differ in who reduces which elements and in how
// inputs get there; the bits are those of this function. Private to comm.
#ifndef APOGEE_COMM_TREE_REDUCE_H_
#define APOGEE_COMM_TREE_REDUCE_H_

#include <cstdint>
#include <span>

#include "apogee/comm/group.h"

namespace apogee::comm {

// Where share `index` of `size` of `count` elements begins. Boundaries are kept on 64-byte lines,
// so that two shares never write one line.
int64_t ShareBegin(int64_t count, size_t index, size_t size, int64_t element_bytes);

// `count` elements of every input, one input per rank in rank order, into each of `outputs`, which
// may be the inputs. Throws Error, prefixed by `op_name`, for integers.
void TreeReduce(const char* op_name, DType dtype, ReduceOp op, std::span<const void* const> inputs,
                std::span<void* const> outputs, int64_t count);

// TreeReduce in two halves: partial sums, unrounded, of blocks of ranks that are next to each other
// and as many in each block, a power of two; then the sum of these. The tree splits after a power
// of two of ranks, so every such block is one of its branches: the bits are those of TreeReduce.
// The dtype of partial sums of `dtype`.
DType PartialDType(DType dtype);
// `partial` must not overlap the inputs.
void TreeReducePartial(const char* op_name, DType dtype, ReduceOp op,
                       std::span<const void* const> inputs, void* partial, int64_t count);
// `dtype`: of the outputs, which must not overlap the partial sums.
void TreeReduceFinish(const char* op_name, DType dtype, ReduceOp op,
                      std::span<const void* const> partials, std::span<void* const> outputs,
                      int64_t count);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_TREE_REDUCE_H_
