// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/failure/outcomes.h"

#include <sys/mman.h>

#include <new>

namespace apogee::comm {
namespace {

constexpr size_t kReserveBytes = 1 << 20;

}  // namespace

Reserve::Reserve()
    : block_(mmap(nullptr, kReserveBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}

void Reserve::Release() {
  if (block_ != MAP_FAILED) munmap(block_, kReserveBytes);
  block_ = MAP_FAILED;
}

std::string WhyItFailed(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return error.what();
  return "out of memory; use a smaller batch or model, fewer ranks or threads on this machine, or "
         "raise the limit (ulimit -v, memory.max of the cgroup)";
}

void Outcomes::Fail(int rank, const std::string& message, bool echo) {
  std::lock_guard lock(mutex_);
  failures_.push_back({rank, message, echo});
}

absl::Status Outcomes::ToStatus(int num_ranks) const {
  const Failure* first = nullptr;
  int same = 0;
  for (const Failure& failure : failures_) {
    if (first == nullptr || (first->echo && !failure.echo)) first = &failure;
  }
  if (first == nullptr) return absl::OkStatus();
  for (const Failure& failure : failures_) same += failure.message == first->message;
  if (same == num_ranks) return absl::InternalError(first->message);
  return absl::InternalError("rank " + std::to_string(first->rank) + ": " + first->message);
}

}  // namespace apogee::comm
