// SPDX-License-Identifier: Apache-2.0

// Part of every build: in one without CUDA, the functions called here are those of absent.cc.
#include "apogee/tensor/device_backend.h"

#include "apogee/tensor/cuda/cuda_context.h"

namespace apogee::cuda {

int NumDevices() { return NumCudaDevices(); }

absl::StatusOr<ContextPtr> MakeDeviceContext(int device_index, int num_threads) {
  return CudaContext({.device = device_index, .num_threads = num_threads});
}

ContextPtr MakeHostMemory(const ContextPtr& device) { return PinnedContext(device); }

}  // namespace apogee::cuda
