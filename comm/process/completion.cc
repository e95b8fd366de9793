// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/process/operation.h"

namespace apogee::comm::process {

void Completion::Finish(const std::string& error) {
  std::lock_guard lock(mutex_);
  if (done_) return;
  error_ = error;
  done_ = true;
  finished_.notify_all();
}

bool Completion::IsDone() { return done_; }

bool Completion::WaitUntilDone(std::chrono::microseconds timeout) {
  std::unique_lock lock(mutex_);
  return finished_.wait_for(lock, timeout, [this] { return done_.load(); });
}

bool Completion::WaitFor(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!finished_.wait_for(lock, timeout, [this] { return done_.load(); })) return false;
  if (!error_.empty()) throw CommError(error_);
  return true;
}

std::string Operation::Name() const {
  return Fingerprint(call).ToString() + " #" + std::to_string(sequence) + " of group " + group;
}

}  // namespace apogee::comm::process
