// SPDX-License-Identifier: Apache-2.0

// For a build without CUDA: a table without kernels.
#include "apogee/optim/cuda/kernel_table.h"
#include "apogee/optim/step/device_decision.h"

namespace apogee::optim {

const OptimKernels& CudaOptimKernels() {
  static constexpr OptimKernels kEmptyTable;
  return kEmptyTable;
}

std::unique_ptr<DeviceDecision> MakeDeviceDecision(const ContextPtr&) {
  Throw("MakeDeviceDecision: this build has no CUDA");
}

}  // namespace apogee::optim
