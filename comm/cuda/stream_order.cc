// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/cuda/stream_order.h"

#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee::comm::cuda {

using apogee::cuda::CheckCuda;
using apogee::cuda::StreamContext;

StreamMark::StreamMark(const DeviceContext& context) {
  const StreamContext& gpu = StreamContext::Of(context);
  gpu.Use();
  cudaEvent_t event = nullptr;
  CheckCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  event_ = event;
  const cudaError_t recorded = cudaEventRecord(event, gpu.stream());
  if (recorded != cudaSuccess) cudaEventDestroy(event);
  CheckCuda(recorded, "cudaEventRecord");
}

StreamMark::~StreamMark() { cudaEventDestroy(static_cast<cudaEvent_t>(event_)); }

void StreamMark::MakeWait(const DeviceContext& context) const {
  const StreamContext& gpu = StreamContext::Of(context);
  gpu.Use();
  CheckCuda(cudaStreamWaitEvent(gpu.stream(), static_cast<cudaEvent_t>(event_), 0),
            "cudaStreamWaitEvent");
}

bool StreamMark::IsReached() const {
  const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event_));
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // clears the error, so that the next call does not report it
    return false;
  }
  CheckCuda(error, "cudaEventQuery");
  return true;
}

void* StreamOf(const DeviceContext& context) { return StreamContext::Of(context).stream(); }

void UseDeviceOf(const DeviceContext& context) { StreamContext::Of(context).Use(); }

std::string BusIdOf(Device device) {
  char id[64] = {};
  CheckCuda(cudaDeviceGetPCIBusId(id, sizeof(id), device.index), "cudaDeviceGetPCIBusId");
  return id;
}

}  // namespace apogee::comm::cuda
