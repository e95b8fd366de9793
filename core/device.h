// SPDX-License-Identifier: Apache-2.0

// Device: where a tensor's bytes live.
//
//   const Device gpu{.type = DeviceType::kCuda, .index = 1};
//   gpu.ToString() == "cuda:1";
#ifndef APOGEE_CORE_DEVICE_H_
#define APOGEE_CORE_DEVICE_H_

#include <string>

namespace apogee {

enum class DeviceType { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
  std::string ToString() const {
    return type == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(index);
  }
};

}  // namespace apogee

#endif  // APOGEE_CORE_DEVICE_H_
