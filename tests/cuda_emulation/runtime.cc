// SPDX-License-Identifier: Apache-2.0

// The calls of the CUDA runtime that the library makes, on one emulated GPU.
//
// Environment variables:
//   APOGEE_EMULATED_GPU        "none" (no GPU), "no_driver", "old" (the kernels do not fit it),
//                              "small" (the shared memory of consumer GPUs: 99 KiB a block)
//   APOGEE_EMULATED_GPU_BYTES  the size of its memory
//   APOGEE_EMULATED_GPU_BUS    its place on the bus: processes with the same one share a GPU;
//                              without it each process has its own
//   APOGEE_EMULATED_GPU_RACES  "1": races in kernels end the process (races.h)
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "block.h"
#include "device.h"
#include "memory.h"
#include "stream.h"

namespace cuda_emulation {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Noted(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

std::string Kind() {
  const char* kind = std::getenv("APOGEE_EMULATED_GPU");
  return kind == nullptr ? "" : kind;
}

// Of a block.
int SharedLimit() { return (Kind() == "small" ? 99 : 227) * 1024; }

double NowMs() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

cudaError_t Enqueue(const cudaLaunchConfig_t& config, const void* kernel,
                    std::function<void()> thread) {
  const size_t threads = size_t{config.blockDim.x} * config.blockDim.y * config.blockDim.z;
  const size_t blocks = size_t{config.gridDim.x} * config.gridDim.y * config.gridDim.z;
  if (threads == 0 || threads > 1024 || blocks == 0 || config.gridDim.y > 65535 ||
      config.gridDim.z > 65535 || config.dynamicSmemBytes > static_cast<size_t>(SharedLimit())) {
    return Noted(cudaErrorInvalidConfiguration);
  }
  return Noted(StreamOf(config.stream)
                   .Queue([kernel, blocks = config.gridDim, threads = config.blockDim,
                           bytes = config.dynamicSmemBytes, thread = std::move(thread)] {
                     RunGrid(kernel, blocks, threads, bytes, thread);
                   }));
}

}  // namespace cuda_emulation

using cuda_emulation::Noted;
using cuda_emulation::RefuseAllocate;
using cuda_emulation::RefuseFree;
using cuda_emulation::StreamOf;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (cuda_emulation::Kind() == "no_driver") return Noted(cudaErrorInsufficientDriver);
  if (cuda_emulation::Kind() == "none") return Noted(cudaErrorNoDevice);
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : Noted(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 2;  // few, so that loops over a grid take many steps
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = cuda_emulation::Kind() == "old" ? 5 : 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = cuda_emulation::SharedLimit();
      return cudaSuccess;
    default:
      return Noted(cudaErrorInvalidValue);
  }
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (device != 0) return Noted(cudaErrorInvalidDevice);
  const char* bus = std::getenv("APOGEE_EMULATED_GPU_BUS");
  if (bus != nullptr) {
    std::snprintf(id, static_cast<size_t>(length), "%s", bus);
  } else {
    const auto process = static_cast<unsigned>(getpid());
    std::snprintf(id, static_cast<size_t>(length), "%04X:%02X:00.0", process >> 8 & 0xffffu,
                  process & 0xffu);
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cuda_emulation::Kind() == "old" ? Noted(cudaErrorNoKernelImageForDevice) : cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
  return value <= cuda_emulation::SharedLimit() ? cudaSuccess : Noted(cudaErrorInvalidValue);
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    default:
      return "cudaErrorOther";
  }
}
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
cudaError_t cudaGetLastError() { return std::exchange(cuda_emulation::last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return cuda_emulation::last_error; }

cudaError_t cudaMalloc(void** block, size_t bytes) {
  if (const cudaError_t error = RefuseAllocate(); error != cudaSuccess) return Noted(error);
  *block = cuda_emulation::AllocateDevice(bytes);
  return *block == nullptr ? Noted(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFree(void* block) {
  if (block == nullptr) return cudaSuccess;
  if (const cudaError_t error = RefuseFree(); error != cudaSuccess) return Noted(error);
  return cuda_emulation::FreeDevice(block) ? cudaSuccess : Noted(cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = cuda_emulation::FreeDeviceBytes();
  *total = cuda_emulation::DeviceBytes();
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** block, size_t bytes) {
  if (const cudaError_t error = RefuseAllocate(); error != cudaSuccess) return Noted(error);
  *block = cuda_emulation::AllocatePinned(bytes);
  return *block == nullptr ? Noted(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaHostAlloc(void** block, size_t bytes, unsigned) {
  return cudaMallocHost(block, bytes);
}
cudaError_t cudaFreeHost(void* block) {
  if (block == nullptr) return cudaSuccess;
  if (const cudaError_t error = RefuseFree(); error != cudaSuccess) return Noted(error);
  return cuda_emulation::FreePinned(block) ? cudaSuccess : Noted(cudaErrorInvalidValue);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool to_device = cuda_emulation::IsDevice(to), from_device = cuda_emulation::IsDevice(from);
  const bool right =
      kind == cudaMemcpyDefault ||
      (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
       from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
  if (!right) return Noted(cudaErrorInvalidValue);
  const bool pageable_from = !from_device && !cuda_emulation::IsPinned(from);
  if (pageable_from || (!to_device && !cuda_emulation::IsPinned(to))) {
    // A replay would use memory that the driver does not keep.
    const cudaError_t error = StreamOf(stream).RefuseInCapture();
    if (error != cudaSuccess) return Noted(error);
  }
  if (!pageable_from) {
    return Noted(StreamOf(stream).Queue([=] { std::memcpy(to, from, bytes); }));
  }
  // Pageable memory is staged: its bytes are copied now.
  const char* begin = static_cast<const char*>(from);
  return Noted(
      StreamOf(stream).Queue([to, bytes, staged = std::vector<char>(begin, begin + bytes)] {
        std::memcpy(to, staged.data(), bytes);
      }));
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (!cuda_emulation::IsDevice(to) && !cuda_emulation::IsPinned(to)) {
    return Noted(cudaErrorInvalidValue);
  }
  return Noted(StreamOf(stream).Queue([=] { std::memset(to, value, bytes); }));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return Noted(StreamOf(stream).Wait()); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return StreamOf(stream).Query(); }

// A capture records one stream. Events within a capture, by which other streams could join it on a
// GPU, are refused.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return Noted(cudaErrorStreamCaptureUnsupported);
  return Noted(stream->BeginCapture(mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return Noted(StreamOf(stream).EndCapture(graph));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = StreamOf(stream).capture_status();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  CUstream_st& queue = StreamOf(stream);
  // A GPU would make it a child of the captured graph.
  if (const cudaError_t error = queue.RefuseInCapture(); error != cudaSuccess) return Noted(error);
  return Noted(queue.Queue([work = exec->work] {
    for (const std::function<void()>& each : *work) each();
  }));
}
// A GPU takes the new work if its nodes have the kinds and the order of the old ones.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info) {
  *info = {};
  if (exec->work->size() != graph->work->size()) {
    info->result = cudaGraphExecUpdateErrorTopologyChanged;
    return Noted(cudaErrorGraphExecUpdateFailure);
  }
  exec->work = graph->work;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  StreamOf(stream).Queue([=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = StreamOf(stream).RefuseInCapture(); error != cudaSuccess) {
    return Noted(error);
  }
  std::unique_lock lock(event->state->mutex);
  const uint64_t record = ++event->state->recorded;
  lock.unlock();
  StreamOf(stream).Queue([state = event->state, record] {
    std::lock_guard reach(state->mutex);
    state->reached = record;
    state->reached_ms = cuda_emulation::NowMs();
    state->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CUevent_st::State& state = *event->state;
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&] { return state.reached == state.recorded; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  std::lock_guard lock(event->state->mutex);
  return event->state->reached == event->state->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  *ms = static_cast<float>(end->state->reached_ms - start->state->reached_ms);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const cudaError_t error = StreamOf(stream).RefuseInCapture(); error != cudaSuccess) {
    return Noted(error);
  }
  std::unique_lock lock(event->state->mutex);
  const uint64_t record = event->state->recorded;
  lock.unlock();
  StreamOf(stream).Queue([state = event->state, record] {
    std::unique_lock wait(state->mutex);
    state->changed.wait(wait, [&] { return state->reached >= record; });
  });
  return cudaSuccess;
}

}  // extern "C"
