// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/failure/outcomes.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "apogee/comm/failure/give_up.h"
#include "apogee/comm/work.h"

namespace apogee::comm {
namespace {

constexpr size_t kReserveBytes = 1 << 20;

// Of a report, a millisecond apart.
constexpr int kMaxAttempts = 5000;

}  // namespace

Reserve::Reserve()
    : block_(mmap(nullptr, kReserveBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}

void Reserve::Release() {
  if (block_ != MAP_FAILED) munmap(block_, kReserveBytes);
  block_ = MAP_FAILED;
}

RankFailure FailureOf(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const CommError& error) {
    return {error.what(), /*echo=*/true};
  } catch (const std::bad_alloc&) {
    return {
        "out of memory; use a smaller batch or model, fewer ranks or threads on this machine, or "
        "raise the limit (ulimit -v, memory.max of the cgroup)"};
  } catch (const std::exception& error) {
    return {error.what()};
  } catch (...) {
    return {"threw something that is not a std::exception"};
  }
}

void WaitForMemory(int attempt) {
  if (attempt == kMaxAttempts) {
    std::fputs("apogee: out of memory, even for the report of it; the process ends\n", stderr);
    std::_Exit(kExitCode);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Outcomes::Fail(int rank, RankFailure failure) {
  std::lock_guard lock(mutex_);
  failures_.push_back({std::move(failure), rank});
}

absl::Status Outcomes::ToStatus(int num_ranks) const {
  const Failed* first = nullptr;
  int same = 0;
  for (const Failed& failure : failures_) {
    if (first == nullptr || (first->echo && !failure.echo)) first = &failure;
  }
  if (first == nullptr) return absl::OkStatus();
  for (const Failed& failure : failures_) same += failure.message == first->message;
  if (same == num_ranks) return absl::InternalError(first->message);
  return absl::InternalError("rank " + std::to_string(first->rank) + ": " + first->message);
}

}  // namespace apogee::comm
