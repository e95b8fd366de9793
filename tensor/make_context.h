// SPDX-License-Identifier: Apache-2.0

// A rank's context on the device that a user named.
//
//   APOGEE_ASSIGN_OR_RETURN(const DeviceName device, ParseDevice("cuda"));
//   APOGEE_ASSIGN_OR_RETURN(ContextPtr context, MakeContext(device.For(rank), num_threads));
#ifndef APOGEE_TENSOR_MAKE_CONTEXT_H_
#define APOGEE_TENSOR_MAKE_CONTEXT_H_

#include <string>

#include "apogee/core/device_context.h"
#include "apogee/core/status.h"

namespace apogee {

// "cpu", "cuda:1", or "cuda": a GPU that the rank's number chooses.
struct DeviceName {
  DeviceType type = DeviceType::kCpu;
  int index = -1;  // of the GPU; -1: any

  // The device of one of several processes: GPUs are dealt out in turn.
  Device For(int process) const;
};
// InvalidArgument for anything else.
absl::StatusOr<DeviceName> ParseDevice(const std::string& name);

// CpuContext or CudaContext, with the latter's errors.
absl::StatusOr<ContextPtr> MakeContext(Device device, int num_threads = 1);

// Another context of the rank of `device`, for what its kernels use but is kept in the host's
// memory: a CpuContext, or a PinnedContext (tensor/cuda/cuda_context.h) for a GPU's.
ContextPtr HostMemoryFor(const ContextPtr& device);

}  // namespace apogee

#endif  // APOGEE_TENSOR_MAKE_CONTEXT_H_
