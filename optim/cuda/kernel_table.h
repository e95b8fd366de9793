// SPDX-License-Identifier: Apache-2.0

// The table of this backend's kernels.
#ifndef APOGEE_OPTIM_CUDA_KERNEL_TABLE_H_
#define APOGEE_OPTIM_CUDA_KERNEL_TABLE_H_

#include "apogee/optim/kernels.h"

namespace apogee::optim {

// In a build without CUDA all of its slots are empty.
const OptimKernels& CudaOptimKernels();

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CUDA_KERNEL_TABLE_H_
