// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/local/operation.h"

namespace apogee::comm::local {

void Operation::Finish(const std::vector<int>& missing) {
  for (const auto& [record, id] : notes) record->Finish(id, error, missing);
  notes.clear();
  done = true;
  finished.notify_all();
}

void Operation::FinishShare() {
  std::lock_guard lock(mutex);
  if (--shares_left > 0) return;
  // Before any member is told: a tensor must not stay alive on a thread that has yet to drop the
  // operation, or the peak of a ledger would depend on the scheduler.
  calls.clear();
  Finish();
}

void Operation::Fail(const std::string& message, const std::vector<int>& missing) {
  std::lock_guard lock(mutex);
  if (done) return;
  error = message;
  Finish(missing);
}

bool Operation::IsDone() {
  std::lock_guard lock(mutex);
  return done;
}

bool Operation::WaitFor(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex);
  if (!finished.wait_for(lock, timeout, [this] { return done; })) return false;
  if (!error.empty()) throw CommError(error);
  return true;
}

}  // namespace apogee::comm::local
