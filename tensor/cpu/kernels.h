// SPDX-License-Identifier: Apache-2.0

// Declarations of the CPU kernels, for the table in kernel_table.cc. Private to tensor/cpu.
#ifndef APOGEE_TENSOR_CPU_KERNELS_H_
#define APOGEE_TENSOR_CPU_KERNELS_H_

#include "apogee/tensor/kernel_table.h"

namespace apogee::cpu {

#define APOGEE_DECLARE_KERNEL(name, Args) void name(const DeviceContext& context, const Args& args);
APOGEE_FOR_EACH_KERNEL(APOGEE_DECLARE_KERNEL)
#undef APOGEE_DECLARE_KERNEL

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_KERNELS_H_
