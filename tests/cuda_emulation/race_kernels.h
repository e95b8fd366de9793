// SPDX-License-Identifier: Apache-2.0

// Kernels with and without races, compiled as the library's kernels are.
#ifndef APOGEE_TESTS_CUDA_EMULATION_RACE_KERNELS_H_
#define APOGEE_TESTS_CUDA_EMULATION_RACE_KERNELS_H_

#include <string>

#include "apogee/core/device_context.h"

namespace apogee {

// Runs the kernel of that name on `words`, which are 256 of 4 bytes, all 0.
void RunRaceKernel(const DeviceContext& gpu, const std::string& name, void* words);

}  // namespace apogee

#endif  // APOGEE_TESTS_CUDA_EMULATION_RACE_KERNELS_H_
