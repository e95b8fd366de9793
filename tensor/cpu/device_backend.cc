// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/device_backend.h"

#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::cpu {

int NumDevices() { return 1; }

absl::StatusOr<ContextPtr> MakeDeviceContext(int /*device_index*/, int num_threads) {
  return CpuContext({.num_threads = num_threads});
}

ContextPtr MakeHostMemory(const ContextPtr& device) {
  return CpuContext({.num_threads = device->num_threads(), .dry = device->is_dry()});
}

}  // namespace apogee::cpu
