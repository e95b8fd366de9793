// SPDX-License-Identifier: Apache-2.0

// The CUDA kernels of 1-bit messages. Private to comm/cuda.
#ifndef APOGEE_COMM_CUDA_KERNELS_H_
#define APOGEE_COMM_CUDA_KERNELS_H_

#include "apogee/comm/sign_kernels.h"

namespace apogee::comm::cuda {

#define APOGEE_DECLARE_KERNEL(name, Args) void name(const DeviceContext& context, const Args& args);
APOGEE_FOR_EACH_SIGN_KERNEL(APOGEE_DECLARE_KERNEL)
#undef APOGEE_DECLARE_KERNEL

}  // namespace apogee::comm::cuda

#endif  // APOGEE_COMM_CUDA_KERNELS_H_
