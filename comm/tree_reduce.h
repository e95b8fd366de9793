// SPDX-License-Identifier: Apache-2.0

// The reduction that every backend uses: a balanced binary tree over the ranks,
//
//   ((r0 + r1) + (r2 + r3)) + ...
//
// in f32 (f64 for f64), rounded once. Backends differ in which rank reduces which elements, and in
// how the inputs get there. The bits are always those of this function. Private to comm.
#ifndef APOGEE_COMM_TREE_REDUCE_H_
#define APOGEE_COMM_TREE_REDUCE_H_

#include <cstdint>
#include <span>

#include "apogee/comm/group.h"

namespace apogee::comm {

// The first element of share `index`, when `count` elements are cut into `size` shares. Boundaries
// are at 64-byte lines, so that no two shares write to the same line.
int64_t ShareBegin(int64_t count, size_t index, size_t size, int64_t element_bytes);

// Reduces `count` elements of every input, one input per rank in rank order, into each of
// `outputs`, which may be the inputs. Throws Error for integers, with `op_name` in front.
void TreeReduce(const char* op_name, DType dtype, ReduceOp op, std::span<const void* const> inputs,
                std::span<void* const> outputs, int64_t count);

// TreeReduce in two halves. The first half computes unrounded partial sums of blocks of
// neighbouring ranks; all blocks have the same power of two of ranks. The second half sums the
// partial sums. Each such block is a branch of the tree, so the bits are those of TreeReduce.
//
// The dtype of partial sums of `dtype`.
DType PartialDType(DType dtype);
// `partial` must not overlap the inputs.
void TreeReducePartial(const char* op_name, DType dtype, ReduceOp op,
                       std::span<const void* const> inputs, void* partial, int64_t count);
// `dtype` is that of the outputs, which must not overlap the partial sums.
void TreeReduceFinish(const char* op_name, DType dtype, ReduceOp op,
                      std::span<const void* const> partials, std::span<void* const> outputs,
                      int64_t count);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_TREE_REDUCE_H_
