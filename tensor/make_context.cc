// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/make_context.h"

#include <algorithm>
#include <charconv>

#include "apogee/core/process/thread_team.h"
#include "apogee/tensor/device_backend.h"

namespace apogee {
namespace {

// -1 if `text` is not a number of a device.
int ParseIndex(const std::string& text) {
  int index = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, index);
  return error == std::errc() && last == end ? std::max(index, -1) : -1;
}

}  // namespace

Device DeviceName::For(int process) const {
  const int count = APOGEE_DEVICE_FUNCTION(type, NumDevices)();
  return {type, index >= 0 ? index : process % std::max(1, count)};
}

absl::StatusOr<DeviceName> ParseDevice(const std::string& name) {
  std::string expected;
  for (const DeviceType type : kDeviceTypes) {
    const std::string whole = DeviceTypeName(type), prefix = whole + ":";
    if (name == whole) return DeviceName{.type = type, .index = -1};
    expected += (expected.empty() ? "" : ", ") + whole;
    if (type == DeviceType::kCpu) continue;  // one, without a number
    if (name.starts_with(prefix)) {
      const int index = ParseIndex(name.substr(prefix.size()));
      if (index >= 0) return DeviceName{.type = type, .index = index};
    }
    expected += ", " + prefix + "NUMBER";
  }
  return InvalidArgument("device '", name, "': expected one of ", expected);
}

absl::StatusOr<ContextPtr> MakeContext(Device device, int num_threads) {
  APOGEE_RETURN_IF_ERROR(CheckNumThreads(num_threads));
  return APOGEE_DEVICE_FUNCTION(device.type, MakeDeviceContext)(device.index, num_threads);
}

ContextPtr HostMemoryFor(const ContextPtr& device) {
  return APOGEE_DEVICE_FUNCTION(device->device().type, MakeHostMemory)(device);
}

}  // namespace apogee
