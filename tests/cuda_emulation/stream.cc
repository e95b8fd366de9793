#include "stream.h"

#include <utility>

#include "memory.h"

CUstream_st::CUstream_st() : thread_([this] { Run(); }) {}

CUstream_st::~CUstream_st() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CUstream_st::Queue(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void CUstream_st::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return work_.empty() && !busy_; });
}

bool CUstream_st::IsIdle() {
  std::lock_guard lock(mutex_);
  return work_.empty() && !busy_;
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
  // Kept for the process: its thread must not be joined among the destructors of others.
  static CUstream_st* const default_stream = new CUstream_st;
  return stream == nullptr ? *default_stream : *stream;
}

}  // namespace cuda_emulation
