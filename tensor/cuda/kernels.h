// SPDX-License-Identifier: Apache-2.0

// Declarations of the CUDA kernels' host functions, for the table in kernel_table.cc. Private to
// tensor/cuda.
#ifndef APOGEE_TENSOR_CUDA_KERNELS_H_
#define APOGEE_TENSOR_CUDA_KERNELS_H_

#include "apogee/tensor/kernel_table.h"

namespace apogee::cuda {

#define APOGEE_DECLARE_KERNEL(name, Args) void name(const DeviceContext& context, const Args& args);
APOGEE_FOR_EACH_KERNEL(APOGEE_DECLARE_KERNEL)
#undef APOGEE_DECLARE_KERNEL

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_KERNELS_H_
