// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/nccl/operation.h"

#include <utility>

namespace apogee::comm::nccl {

Operation::Operation(Call call, std::string name, Clock::time_point deadline,
                     std::shared_ptr<FlightRecord> record, uint64_t record_id)
    : call_(std::move(call)),
      name_(std::move(name)),
      deadline_(deadline),
      record_(std::move(record)),
      record_id_(record_id) {}

// The watchdog finishes every operation in time, so waits need no deadline of their own.
void Operation::Wait() {
  const FlightRecord::Waiting waiting(*record_);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
  if (!error_.empty()) throw CommError(error_);
}

bool Operation::IsDone() {
  std::lock_guard lock(mutex_);
  return done_;
}

void Operation::WaitQueued() {
  const FlightRecord::Waiting waiting(*record_);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queued_ || done_; });
  if (!error_.empty()) throw CommError(error_);
}

bool Operation::IsQueued() {
  std::lock_guard lock(mutex_);
  return queued_ || done_;
}

// The watchdog may have failed it in the meantime.
void Operation::SetQueued() {
  std::lock_guard lock(mutex_);
  if (recorded_) return;
  record_->SetMoving(record_id_);
  queued_ = true;
  changed_.notify_all();
}

void Operation::SetRecord(const std::string& error) {
  std::lock_guard lock(mutex_);
  recorded_ = true;
  record_->Finish(record_id_, error);
}

void Operation::Finish(const std::string& error) {
  std::lock_guard lock(mutex_);
  if (done_) return;
  done_ = true;
  error_ = error;
  changed_.notify_all();
}

}  // namespace apogee::comm::nccl
