// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/make_context.h"

#include <algorithm>
#include <charconv>

#include "apogee/core/process/thread_team.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/cuda/cuda_context.h"

namespace apogee {

Device DeviceName::For(int process) const {
  if (type == DeviceType::kCpu) return {};
  return {type, index >= 0 ? index : process % std::max(1, NumCudaDevices())};
}

absl::StatusOr<DeviceName> ParseDevice(const std::string& name) {
  if (name == "cpu") return DeviceName{};
  if (name == "cuda") return DeviceName{.type = DeviceType::kCuda};
  const std::string prefix = "cuda:";
  int index = 0;
  const char* end = name.data() + name.size();
  if (name.starts_with(prefix) && name.size() > prefix.size()) {
    const auto [last, error] = std::from_chars(name.data() + prefix.size(), end, index);
    if (error == std::errc() && last == end && index >= 0) {
      return DeviceName{.type = DeviceType::kCuda, .index = index};
    }
  }
  return InvalidArgument("device '", name, "': expected cpu, cuda, or the number of a GPU, cuda:0");
}

absl::StatusOr<ContextPtr> MakeContext(Device device, int num_threads) {
  APOGEE_RETURN_IF_ERROR(CheckNumThreads(num_threads));
  if (device.type == DeviceType::kCpu) return CpuContext({.num_threads = num_threads});
  return CudaContext({.device = device.index, .num_threads = num_threads});
}

ContextPtr HostMemoryFor(const ContextPtr& device) {
  return device->is_host() ? CpuContext({.num_threads = device->num_threads()})
                           : PinnedContext(device);
}

}  // namespace apogee
