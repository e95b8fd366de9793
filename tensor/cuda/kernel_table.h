// SPDX-License-Identifier: Apache-2.0

// The table of the CUDA kernels. Private to tensor/cuda.
#ifndef APOGEE_TENSOR_CUDA_KERNEL_TABLE_H_
#define APOGEE_TENSOR_CUDA_KERNEL_TABLE_H_

#include "apogee/tensor/kernel_table.h"

namespace apogee::cuda {

const KernelTable& CudaKernelTable();

// Whether the kernels were compiled for the architecture of the thread's current GPU.
bool KernelsFitThisGpu();

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_KERNEL_TABLE_H_
