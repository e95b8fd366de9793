// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/kernel_table.h"

#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim {
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

const OptimKernels& CudaOptimKernels() { return kTable; }

}  // namespace apogee::optim
