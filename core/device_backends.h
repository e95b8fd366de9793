// SPDX-License-Identifier: Apache-2.0

// The list of the device backends. DeviceType, the names of devices, and each layer's choice among
// its backends are made from it, so a new backend is one more line here and a folder per layer
// (docs/adding_a_backend.md).
//
// Every backend defines the same functions, in a namespace of its own. Those of a layer are
// declared in its device_backend.h, and one source of the layer chooses:
//
//   int n = APOGEE_DEVICE_FUNCTION(type, NumDevices)();   // cpu::NumDevices or cuda::NumDevices
#ifndef APOGEE_CORE_DEVICE_BACKENDS_H_
#define APOGEE_CORE_DEVICE_BACKENDS_H_

#include <array>
#include <cstddef>

// X(DeviceType, namespace of the backend in each layer, name of the device, further arguments), one
// line per backend.
#define APOGEE_FOR_EACH_DEVICE_BACKEND(X, ...) \
  X(kCpu, cpu, "cpu", __VA_ARGS__)             \
  X(kCuda, cuda, "cuda", __VA_ARGS__)

// A pointer to `function` of the backend of `type`.
#define APOGEE_DEVICE_FUNCTION(type, function)                                         \
  (std::array{APOGEE_FOR_EACH_DEVICE_BACKEND(APOGEE_DEVICE_FUNCTION_OF, function)}.at( \
      static_cast<size_t>(type)))
#define APOGEE_DEVICE_FUNCTION_OF(Type, backend, name, function) &backend::function,

#endif  // APOGEE_CORE_DEVICE_BACKENDS_H_
