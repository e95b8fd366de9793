// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/device.h"

namespace apogee {

const char* DeviceTypeName(DeviceType type) {
#define APOGEE_NAME(Type, backend, name, ...) name,
  return std::array{APOGEE_FOR_EACH_DEVICE_BACKEND(APOGEE_NAME)}.at(static_cast<size_t>(type));
#undef APOGEE_NAME
}

std::string Device::ToString() const {
  const std::string name = DeviceTypeName(type);
  return type == DeviceType::kCpu ? name : name + ":" + std::to_string(index);
}

}  // namespace apogee
