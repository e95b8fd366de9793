// SPDX-License-Identifier: Apache-2.0

// The table of the CUDA kernels.
#ifndef APOGEE_OPTIM_CUDA_KERNEL_TABLE_H_
#define APOGEE_OPTIM_CUDA_KERNEL_TABLE_H_

#include "apogee/optim/core/kernels.h"

namespace apogee::optim {

// All slots are empty in a build without CUDA.
const OptimKernels& CudaOptimKernels();

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CUDA_KERNEL_TABLE_H_
