// SPDX-License-Identifier: Apache-2.0

#include "stream.h"

#include <utility>

#include "memory.h"

namespace {

// The capture that this thread has begun.
thread_local CUstream_st* capturing = nullptr;
thread_local bool is_relaxed = false;

}  // namespace

CUstream_st::CUstream_st() : thread_([this] { Run(); }) {}

CUstream_st::~CUstream_st() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

cudaError_t CUstream_st::Queue(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (capture_ == cudaStreamCaptureStatusInvalidated) return cudaErrorStreamCaptureInvalidated;
    if (capture_ == cudaStreamCaptureStatusActive) {
      captured_.push_back(std::move(work));
      return cudaSuccess;
    }
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
  return cudaSuccess;
}

cudaError_t CUstream_st::RefuseLocked() {
  if (capture_ == cudaStreamCaptureStatusNone) return cudaSuccess;
  capture_ = cudaStreamCaptureStatusInvalidated;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t CUstream_st::RefuseInCapture() {
  std::lock_guard lock(mutex_);
  return RefuseLocked();
}

cudaError_t CUstream_st::Wait() {
  std::unique_lock lock(mutex_);
  if (const cudaError_t error = RefuseLocked(); error != cudaSuccess) return error;
  changed_.wait(lock, [this] { return work_.empty() && !busy_; });
  return cudaSuccess;
}

cudaError_t CUstream_st::Query() {
  std::lock_guard lock(mutex_);
  if (const cudaError_t error = RefuseLocked(); error != cudaSuccess) return error;
  return work_.empty() && !busy_ ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t CUstream_st::BeginCapture(cudaStreamCaptureMode mode) {
  std::lock_guard lock(mutex_);
  if (capture_ != cudaStreamCaptureStatusNone) return cudaErrorIllegalState;
  capture_ = cudaStreamCaptureStatusActive;
  capturing = this;
  is_relaxed = mode == cudaStreamCaptureModeRelaxed;
  return cudaSuccess;
}

cudaError_t CUstream_st::EndCapture(cudaGraph_t* graph) {
  std::lock_guard lock(mutex_);
  *graph = nullptr;
  if (capture_ == cudaStreamCaptureStatusNone) return cudaErrorIllegalState;
  if (capturing == this) capturing = nullptr;
  const bool valid = capture_ == cudaStreamCaptureStatusActive;
  capture_ = cudaStreamCaptureStatusNone;
  auto work =
      std::make_shared<const std::vector<std::function<void()>>>(std::exchange(captured_, {}));
  if (!valid) return cudaErrorStreamCaptureInvalidated;
  *graph = new CUgraph_st{std::move(work)};
  return cudaSuccess;
}

cudaStreamCaptureStatus CUstream_st::capture_status() {
  std::lock_guard lock(mutex_);
  return capture_;
}

void CUstream_st::Run() {
  cuda_emulation::LetThisThreadTouchDevice();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
    if (work_.empty()) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

namespace cuda_emulation {

CUstream_st& StreamOf(cudaStream_t stream) {
  // Never destroyed: its thread must not be joined while other static objects are destroyed.
  static CUstream_st* const default_stream = new CUstream_st;
  return stream == nullptr ? *default_stream : *stream;
}

cudaError_t RefuseFree() {
  return capturing == nullptr ? cudaSuccess : capturing->RefuseInCapture();
}
cudaError_t RefuseAllocate() { return is_relaxed ? cudaSuccess : RefuseFree(); }

}  // namespace cuda_emulation
