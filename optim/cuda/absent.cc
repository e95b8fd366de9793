// SPDX-License-Identifier: Apache-2.0

// For a build without CUDA: a table without kernels.
#include "apogee/optim/core/device_backend.h"

namespace apogee::optim::cuda {

const OptimKernels& OptimKernelTable() {
  static constexpr OptimKernels kEmptyTable;
  return kEmptyTable;
}

DecisionMaker DeviceDecisionMaker() { return nullptr; }

}  // namespace apogee::optim::cuda
