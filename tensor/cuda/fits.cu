// SPDX-License-Identifier: Apache-2.0

// Whether this build's kernels run on the current GPU: asks the driver for one of them.
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/kernel_table.h"

namespace apogee::cuda {
namespace {

__global__ void ProbeKernel() {}

}  // namespace

bool KernelsFitThisGpu() {
  cudaFuncAttributes attributes;
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&ProbeKernel));
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess;
}

}  // namespace apogee::cuda
