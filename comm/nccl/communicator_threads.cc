// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/nccl/communicator_threads.h"

#include <algorithm>
#include <utility>

#include "apogee/comm/failure/give_up.h"

namespace apogee::comm::nccl {

CommunicatorThreads::CommunicatorThreads(CommunicatorOptions options)
    : options_(std::move(options)) {}

void CommunicatorThreads::Start() {
  init_deadline_ = Clock::now() + options_.timeout;
  watchdog_ = std::thread([this] { Watch(); });
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (...) {
    std::lock_guard lock(mutex_);
    thread_done_ = true;
    throw;
  }
}

void CommunicatorThreads::WaitReady() {
  std::unique_lock lock(mutex_);
  to_caller_.wait(lock, [this] { return ready_ || report_done_; });
  if (!failed_.empty()) throw CommError(failed_);
}

void CommunicatorThreads::Abort(const std::string& why) {
  std::lock_guard lock(mutex_);
  if (!reported_.empty() || !failed_.empty() || thread_done_) return;
  reported_ = why;
  aborted_ = true;
  to_watchdog_.notify_all();
}

void CommunicatorThreads::Add(const OperationPtr& operation) {
  std::string error;
  {
    std::lock_guard lock(mutex_);
    if (failed_.empty()) {
      operations_.push_back(operation);
      to_thread_.notify_all();
      return;
    }
    error = operation->name() + ": its communicator has failed before: " + failed_;
  }
  operation->SetRecord(error);
  throw CommError(error);
}

void CommunicatorThreads::End() {
  {
    std::unique_lock lock(mutex_);
    finishing_ = true;
    const auto last = operations_.empty() ? Clock::now() : operations_.back()->deadline();
    finish_deadline_ = std::max(Clock::now(), last) + options_.timeout;
    to_thread_.notify_all();
    to_caller_.wait(
        lock, [this] { return report_done_ || (thread_done_ && !stopping_ && reported_.empty()); });
    if (report_done_ && !to_caller_.wait_until(lock, abort_started_ + kGrace,
                                               [this] { return thread_done_ && abort_done_; })) {
      EndProcess();
    }
    ended_ = true;
    to_watchdog_.notify_all();
  }
  for (std::thread* thread : {&thread_, &watchdog_, &abort_}) {
    if (thread->joinable()) thread->join();
  }
}

}  // namespace apogee::comm::nccl
