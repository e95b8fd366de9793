// A build without CUDA.
#include "apogee/tensor/cuda/cuda_context.h"

namespace apogee {

absl::StatusOr<ContextPtr> CudaContext(const CudaOptions& /*options*/) {
  return absl::FailedPreconditionError(
      "device cuda: this build has no CUDA; configure where nvcc is found (-DAPOGEE_WITH_CUDA=ON), "
      "or use device cpu");
}

int NumCudaDevices() { return 0; }

}  // namespace apogee
