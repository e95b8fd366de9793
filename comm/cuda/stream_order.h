// SPDX-License-Identifier: Apache-2.0

// Order between the streams of one GPU's contexts, for collectives that have a stream of their own,
// without CUDA's headers. Private to comm.
//
//   const StreamMark ready(*tensor.context());  // behind all that is queued there by now
//   ready.MakeWait(*communication);             // before all that is queued here from now on
//   if (ready.IsReached()) ...
//
// Calls throw Error where CUDA refuses, and in a build without CUDA.
#ifndef APOGEE_COMM_CUDA_STREAM_ORDER_H_
#define APOGEE_COMM_CUDA_STREAM_ORDER_H_

#include <string>

#include "apogee/core/device_context.h"

namespace apogee::comm::cuda {

class StreamMark {
 public:
  explicit StreamMark(const DeviceContext& context);
  // The mark may have yet to be reached.
  ~StreamMark();
  StreamMark(const StreamMark&) = delete;
  StreamMark& operator=(const StreamMark&) = delete;

  // The context's stream waits for the mark; the caller does not.
  void MakeWait(const DeviceContext& context) const;
  bool IsReached() const;

 private:
  void* event_ = nullptr;  // cudaEvent_t
};

// The context's cudaStream_t.
void* StreamOf(const DeviceContext& context);
// Makes the context's GPU the calling thread's.
void UseDeviceOf(const DeviceContext& context);
// Which GPU of the machine it is, whatever its number in this process: "0000:3B:00.0".
std::string BusIdOf(Device device);

}  // namespace apogee::comm::cuda

#endif  // APOGEE_COMM_CUDA_STREAM_ORDER_H_
