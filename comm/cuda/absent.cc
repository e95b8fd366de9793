// A build without CUDA has no context of a GPU, so this is never called.
#include "apogee/comm/cuda/tree_reduce.h"

namespace apogee::comm {

void TreeReduceCuda(const DeviceContext& context, const char* op_name, DType /*dtype*/,
                    ReduceOp /*op*/, std::span<const void* const> /*inputs*/,
                    std::span<void* const> /*outputs*/, int64_t /*count*/) {
  Throw(op_name, ": no kernel for ", context.device().ToString(), ": this build has no CUDA");
}

}  // namespace apogee::comm
