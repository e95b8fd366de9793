// SPDX-License-Identifier: Apache-2.0

// TreeReduce (comm/tree_reduce.h) for device pointers, with the same bits. Private to comm.
//
//   TreeReduceCuda(context, "all_reduce", DType::kBF16, ReduceOp::kSum, inputs, outputs, count);
//
// Reduces `count` elements of every input, one input per rank in rank order, into each of
// `outputs`, which may be the inputs. The context's GPU must reach all this memory, which must be
// ready when its stream gets there. Queued on the context's stream; does not wait. Throws Error for
// integers, with `op_name` in front.
#ifndef APOGEE_COMM_CUDA_TREE_REDUCE_H_
#define APOGEE_COMM_CUDA_TREE_REDUCE_H_

#include <cstdint>
#include <span>

#include "apogee/comm/reduce_op.h"
#include "apogee/core/device_context.h"
#include "apogee/core/dtype.h"

namespace apogee::comm::cuda {

void TreeReduceCuda(const DeviceContext& context, const char* op_name, DType dtype, ReduceOp op,
                    std::span<const void* const> inputs, std::span<void* const> outputs,
                    int64_t count);

}  // namespace apogee::comm::cuda

#endif  // APOGEE_COMM_CUDA_TREE_REDUCE_H_
