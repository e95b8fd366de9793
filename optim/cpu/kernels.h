// SPDX-License-Identifier: Apache-2.0

// Declarations of the CPU kernels, for the table in kernel_table.cc. Private to optim/cpu.
#ifndef APOGEE_OPTIM_CPU_KERNELS_H_
#define APOGEE_OPTIM_CPU_KERNELS_H_

#include "apogee/optim/core/kernels.h"

namespace apogee::optim::cpu {

#define APOGEE_DECLARE_KERNEL(name, Args) void name(const DeviceContext& context, const Args& args);
APOGEE_FOR_EACH_OPTIM_KERNEL(APOGEE_DECLARE_KERNEL)
#undef APOGEE_DECLARE_KERNEL

}  // namespace apogee::optim::cpu

#endif  // APOGEE_OPTIM_CPU_KERNELS_H_
