// SPDX-License-Identifier: Apache-2.0

// Order between the streams of one GPU's contexts, for collectives that run on a stream of their
// own. Needs no CUDA headers. Private to comm.
//
//   const StreamMark ready(*tensor.context());  // marks the end of the work queued there so far
//   ready.MakeWait(*communication);             // later work queued here waits for the mark
//   if (ready.IsReached()) ...
//
// All calls throw Error if CUDA reports an error, and in a build without CUDA.
#ifndef APOGEE_COMM_CUDA_STREAM_ORDER_H_
#define APOGEE_COMM_CUDA_STREAM_ORDER_H_

#include <string>

#include "apogee/core/device_context.h"

namespace apogee::comm::cuda {

class StreamMark {
 public:
  explicit StreamMark(const DeviceContext& context);
  // The mark need not have been reached.
  ~StreamMark();
  StreamMark(const StreamMark&) = delete;
  StreamMark& operator=(const StreamMark&) = delete;

  // Makes the context's stream wait for the mark. The caller does not wait.
  void MakeWait(const DeviceContext& context) const;
  bool IsReached() const;

 private:
  void* event_ = nullptr;  // cudaEvent_t
};

// The context's cudaStream_t.
void* StreamOf(const DeviceContext& context);
// Selects the context's GPU in the calling thread.
void UseDeviceOf(const DeviceContext& context);
// The GPU's PCI bus id, such as "0000:3B:00.0". It identifies the GPU even if this process gives it
// another number.
std::string BusIdOf(Device device);

}  // namespace apogee::comm::cuda

#endif  // APOGEE_COMM_CUDA_STREAM_ORDER_H_
