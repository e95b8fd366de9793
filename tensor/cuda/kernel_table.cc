// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/kernel_table.h"

#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

constexpr KernelTable MakeTable() {
  KernelTable table;
#define APOGEE_FILL_SLOT(name, Args) table.name = &cuda::name;
  APOGEE_FOR_EACH_KERNEL(APOGEE_FILL_SLOT)
#undef APOGEE_FILL_SLOT
  return table;
}

constexpr KernelTable kTable = MakeTable();

}  // namespace

const KernelTable& CudaKernelTable() { return kTable; }

}  // namespace apogee::cuda
