// SPDX-License-Identifier: Apache-2.0

// A stream: a thread that runs queued work in order. Private to the emulation.
#ifndef APOGEE_TESTS_CUDA_EMULATION_STREAM_H_
#define APOGEE_TESTS_CUDA_EMULATION_STREAM_H_

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

// The type behind cudaStream_t.
struct CUstream_st {
 public:
  CUstream_st();
  ~CUstream_st();  // waits for the queued work
  // Queues the work, or records it while a graph is captured. Fails if the capture is invalid.
  cudaError_t Queue(std::function<void()> work);
  // As on a GPU, these two fail while the stream captures, and make the capture invalid.
  cudaError_t Wait();
  cudaError_t Query();
  // For other calls that cannot be captured: returns an error and makes the capture invalid, or
  // success if there is no capture.
  cudaError_t RefuseInCapture();

  // The calling thread may not give memory back until the capture has ended, and takes memory only
  // if the capture is relaxed (RefuseFree, RefuseAllocate).
  cudaError_t BeginCapture(cudaStreamCaptureMode mode);
  // Ends the capture. Sets *graph to null and returns an error if the capture was invalid.
  cudaError_t EndCapture(cudaGraph_t* graph);
  cudaStreamCaptureStatus capture_status();

 private:
  void Run();
  cudaError_t RefuseLocked();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false, stopping_ = false;
  cudaStreamCaptureStatus capture_ = cudaStreamCaptureStatusNone;
  std::vector<std::function<void()>> captured_;
  std::thread thread_;
};

// The work that was queued on a stream while it captured, in order.
struct CUgraph_st {
  std::shared_ptr<const std::vector<std::function<void()>>> work;
};
struct CUgraphExec_st : CUgraph_st {};

// An event: the number of times that it was recorded, and the last record that its stream has
// reached. It may be destroyed before streams reach it or while they wait for it.
struct CUevent_st {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0;
    double reached_ms = 0;
  };
  const std::shared_ptr<State> state = std::make_shared<State>();
};

namespace cuda_emulation {

// The stream itself; the default stream for null.
CUstream_st& StreamOf(cudaStream_t stream);

// For calls that give memory back or take some: as RefuseInCapture, for the capture that the
// calling thread has begun. Giving memory back may wait for the GPU, in any mode.
cudaError_t RefuseFree();
cudaError_t RefuseAllocate();

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_STREAM_H_
