// SPDX-License-Identifier: Apache-2.0

// The functions by which every device backend gives tensor/ its contexts, in the backend's
// namespace: apogee::cpu in tensor/cpu, apogee::cuda in tensor/cuda. tensor/make_context.cc chooses
// among them. A backend that lacks one does not link. Private to tensor.
//
//   int cuda::NumDevices() { return NumCudaDevices(); }
#ifndef APOGEE_TENSOR_DEVICE_BACKEND_H_
#define APOGEE_TENSOR_DEVICE_BACKEND_H_

#include "apogee/core/device_context.h"
#include "apogee/core/status.h"

namespace apogee {

// NumDevices         how many devices of the type this process sees
// MakeDeviceContext  MakeContext (make_context.h) for a device of the type. The context carries its
//                    table of kernels. Returns a status that names the remedy if this machine or
//                    build has no such device
// MakeHostMemory     HostMemoryFor (make_context.h) for a context of the type
#define APOGEE_DECLARE_DEVICE_BACKEND(Type, backend, ...)                          \
  namespace backend {                                                              \
  int NumDevices();                                                                \
  absl::StatusOr<ContextPtr> MakeDeviceContext(int device_index, int num_threads); \
  ContextPtr MakeHostMemory(const ContextPtr& device);                             \
  }
APOGEE_FOR_EACH_DEVICE_BACKEND(APOGEE_DECLARE_DEVICE_BACKEND)
#undef APOGEE_DECLARE_DEVICE_BACKEND

}  // namespace apogee

#endif  // APOGEE_TENSOR_DEVICE_BACKEND_H_
