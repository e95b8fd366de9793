// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/kernel_table.h"

#include "apogee/optim/cpu/kernels.h"

namespace apogee::optim {
namespace {

constexpr OptimKernels MakeCpuTable() {
  OptimKernels table;
#define APOGEE_FILL_SLOT(name, Args) table.name = &cpu::name;
  APOGEE_FOR_EACH_OPTIM_KERNEL(APOGEE_FILL_SLOT)
#undef APOGEE_FILL_SLOT
  return table;
}

constexpr OptimKernels kCpuTable = MakeCpuTable();

}  // namespace

const OptimKernels& OptimKernelsFor(const DeviceContext& context) {
  return context.device().type == DeviceType::kCpu ? kCpuTable : CudaOptimKernels();
}

}  // namespace apogee::optim
