// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/core/device_backend.h"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

constexpr OptimKernels MakeTable() {
  OptimKernels table;
#define APOGEE_FILL_SLOT(name, Args) table.name = &cuda::name;
  APOGEE_FOR_EACH_OPTIM_KERNEL(APOGEE_FILL_SLOT)
#undef APOGEE_FILL_SLOT
  return table;
}

constexpr OptimKernels kTable = MakeTable();

}  // namespace

const OptimKernels& OptimKernelTable() { return kTable; }

DecisionMaker DeviceDecisionMaker() { return &MakeGpuDecision; }

}  // namespace apogee::optim::cuda
