// A build without CUDA.
#include "apogee/optim/cuda/kernel_table.h"

namespace apogee::optim {

const OptimKernels& CudaOptimKernels() {
  static constexpr OptimKernels kEmptyTable;
  return kEmptyTable;
}

}  // namespace apogee::optim
