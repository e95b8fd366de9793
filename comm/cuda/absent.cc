// A build without CUDA.
#include "apogee/comm/cuda/kernels.h"
#include "apogee/comm/cuda/tree_reduce.h"

namespace apogee::comm::cuda {
namespace {

constexpr SignKernels kEmptyTable;

}  // namespace

const SignKernels& SignKernelTable() { return kEmptyTable; }

void TreeReduceCuda(const DeviceContext& context, const char* op_name, DType /*dtype*/,
                    ReduceOp /*op*/, std::span<const void* const> /*inputs*/,
                    std::span<void* const> /*outputs*/, int64_t /*count*/) {
  Throw(op_name, ": a tensor on ", context.device().ToString(), ", but this build has no CUDA");
}

}  // namespace apogee::comm::cuda
