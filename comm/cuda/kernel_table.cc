// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/cuda/kernels.h"
#include "apogee/comm/device_backend.h"

namespace apogee::comm::cuda {
namespace {

constexpr SignKernels MakeTable() {
  SignKernels table;
#define APOGEE_FILL_SLOT(name, Args) table.name = &cuda::name;
  APOGEE_FOR_EACH_SIGN_KERNEL(APOGEE_FILL_SLOT)
#undef APOGEE_FILL_SLOT
  return table;
}

constexpr SignKernels kTable = MakeTable();

}  // namespace

const SignKernels& SignKernelTable() { return kTable; }

}  // namespace apogee::comm::cuda
