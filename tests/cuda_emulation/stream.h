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

// CUDA's name of it.
struct CUstream_st {
 public:
  CUstream_st();
  ~CUstream_st();  // after what is queued
  void Queue(std::function<void()> work);
  void Wait();
  bool IsIdle();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false, stopping_ = false;
  std::thread thread_;
};

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
