// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/core/device_backend.h"
#include "apogee/optim/cpu/kernels.h"

namespace apogee::optim::cpu {
namespace {

constexpr OptimKernels MakeTable() {
  OptimKernels table;
#define APOGEE_FILL_SLOT(name, Args) table.name = &cpu::name;
  APOGEE_FOR_EACH_OPTIM_KERNEL(APOGEE_FILL_SLOT)
#undef APOGEE_FILL_SLOT
  return table;
}

constexpr OptimKernels kTable = MakeTable();

}  // namespace

const OptimKernels& OptimKernelTable() { return kTable; }

// Kernels have run when they return, so the host knows all that a decision needs.
DecisionMaker DeviceDecisionMaker() { return nullptr; }

}  // namespace apogee::optim::cpu
