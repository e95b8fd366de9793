// SPDX-License-Identifier: Apache-2.0

// Declarations of the host functions that launch the CUDA kernels, for the table in
// kernel_table.cc. Private to optim/cuda.
#ifndef APOGEE_OPTIM_CUDA_KERNELS_H_
#define APOGEE_OPTIM_CUDA_KERNELS_H_

#include <memory>

#include "apogee/optim/core/kernels.h"
#include "apogee/optim/step/device_decision.h"

namespace apogee::optim::cuda {

#define APOGEE_DECLARE_KERNEL(name, Args) void name(const DeviceContext& context, const Args& args);
APOGEE_FOR_EACH_OPTIM_KERNEL(APOGEE_DECLARE_KERNEL)
#undef APOGEE_DECLARE_KERNEL

// The decision of steps on the GPU of `context`. Throws Error if CUDA reports an error.
std::unique_ptr<DeviceDecision> MakeGpuDecision(const ContextPtr& context);

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_KERNELS_H_
