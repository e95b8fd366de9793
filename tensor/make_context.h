// SPDX-License-Identifier: Apache-2.0

// Makes a rank's context from a device name, such as the value of --device.
//
//   APOGEE_ASSIGN_OR_RETURN(const DeviceName device, ParseDevice("cuda"));
//   APOGEE_ASSIGN_OR_RETURN(ContextPtr context, MakeContext(device.For(rank), num_threads));
#ifndef APOGEE_TENSOR_MAKE_CONTEXT_H_
#define APOGEE_TENSOR_MAKE_CONTEXT_H_

#include <string>

#include "apogee/core/device_context.h"
#include "apogee/core/status.h"

namespace apogee {

// "cpu", "cuda:1", or "cuda": a GPU chosen by the process's number. In the same way for every other
// type of device (core/device_backends.h).
struct DeviceName {
  DeviceType type = DeviceType::kCpu;
  int index = -1;  // of the device; -1: For() chooses

  // The device of process number `process` on this machine. "cuda" is GPU `process` modulo the
  // number of GPUs.
  Device For(int process) const;
};
// Returns InvalidArgument for any other name.
absl::StatusOr<DeviceName> ParseDevice(const std::string& name);

// A context of the device's backend, such as a CpuContext or a CudaContext. Returns its errors and
// those of CheckNumThreads.
absl::StatusOr<ContextPtr> MakeContext(Device device, int num_threads = 1);

// Makes another context of the rank of `device`, for tensors that stay in the host's memory while
// kernels of `device` read and write them (offload). It is a CpuContext for a CPU, and a
// PinnedContext (tensor/cuda/cuda_context.h) for a GPU of CUDA.
ContextPtr HostMemoryFor(const ContextPtr& device);

}  // namespace apogee

#endif  // APOGEE_TENSOR_MAKE_CONTEXT_H_
