// SPDX-License-Identifier: Apache-2.0

// A stream: a thread that carries out what is queued, in order. Private to the emulation.
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

// CUDA's name of it.
struct CUstream_st {
 public:
  CUstream_st();
  ~CUstream_st();  // after what is queued
  // Records it instead while a graph is captured; fails when the capture has become invalid.
  cudaError_t Queue(std::function<void()> work);
  // As on a GPU these cannot be asked of a stream that captures, and end what it captures.
  cudaError_t Wait();
  cudaError_t Query();
  // What else a capture has no form for: an error that makes it invalid, success without one.
  cudaError_t RefuseInCapture();

  cudaError_t BeginCapture();
  // Null and an error when the capture had become invalid; there is none any more in either case.
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

// What a stream was asked for while it captured, in order.
struct CUgraph_st {
  std::shared_ptr<const std::vector<std::function<void()>>> work;
};
struct CUgraphExec_st : CUgraph_st {};

// An event: how often it was recorded, and the last record that the stream has come to. May be
// destroyed while streams have yet to come to it, or wait for it.
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

// The stream itself, or the default one for null.
CUstream_st& StreamOf(cudaStream_t stream);

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_STREAM_H_
