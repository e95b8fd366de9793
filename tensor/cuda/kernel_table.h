// SPDX-License-Identifier: Apache-2.0

// The table of this backend's kernels. Private to tensor/cuda.
#ifndef APOGEE_TENSOR_CUDA_KERNEL_TABLE_H_
#define APOGEE_TENSOR_CUDA_KERNEL_TABLE_H_

#include "apogee/tensor/kernel_table.h"

namespace apogee::cuda {

const KernelTable& CudaKernelTable();

// False when the current GPU's architecture is not among those the kernels were compiled for.
bool KernelsFitThisGpu();

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_KERNEL_TABLE_H_
