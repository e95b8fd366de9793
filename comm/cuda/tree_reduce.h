// TreeReduce (comm/tree_reduce.h) of memory on one GPU. Private to comm.
#ifndef APOGEE_COMM_CUDA_TREE_REDUCE_H_
#define APOGEE_COMM_CUDA_TREE_REDUCE_H_

#include <cstdint>
#include <span>

#include "apogee/comm/group.h"

namespace apogee::comm {

// Queued on the context's stream. The same bits as on the CPU.
void TreeReduceCuda(const DeviceContext& context, const char* op_name, DType dtype, ReduceOp op,
                    std::span<const void* const> inputs, std::span<void* const> outputs,
                    int64_t count);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_CUDA_TREE_REDUCE_H_
