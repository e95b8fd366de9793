// SPDX-License-Identifier: Apache-2.0

// Device: where a tensor's bytes live.
//
//   const Device gpu{.type = DeviceType::kCuda, .index = 1};
//   gpu.ToString() == "cuda:1";
#ifndef APOGEE_CORE_DEVICE_H_
#define APOGEE_CORE_DEVICE_H_

#include <cstdint>
#include <string>

#include "apogee/core/device_backends.h"

namespace apogee {

enum class DeviceType : uint8_t {
#define APOGEE_ENUMERATOR(Type, ...) Type,
  APOGEE_FOR_EACH_DEVICE_BACKEND(APOGEE_ENUMERATOR)
#undef APOGEE_ENUMERATOR
};

inline constexpr DeviceType kDeviceTypes[] = {
#define APOGEE_ENUMERATOR(Type, ...) DeviceType::Type,
    APOGEE_FOR_EACH_DEVICE_BACKEND(APOGEE_ENUMERATOR)
#undef APOGEE_ENUMERATOR
};

// "cpu", "cuda".
const char* DeviceTypeName(DeviceType type);

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
  // "cpu", as there is one host, or "cuda:1".
  std::string ToString() const;
};

}  // namespace apogee

#endif  // APOGEE_CORE_DEVICE_H_
