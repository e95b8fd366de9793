// SPDX-License-Identifier: Apache-2.0

// The communicator's thread that calls NCCL.
#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "apogee/comm/nccl/backoff.h"
#include "apogee/comm/nccl/communicator_threads.h"
#include "apogee/comm/nccl/enqueue.h"

namespace apogee::comm::nccl {
namespace {

// Time between two checks: of running operations; of these during a burst of calls; of NCCL's
// health while idle.
constexpr std::chrono::microseconds kBusyPause(100);
constexpr std::chrono::milliseconds kSweepPause(1);
constexpr std::chrono::milliseconds kIdlePause(20);

}  // namespace

CommunicatorThreads::Inside::Inside(CommunicatorThreads& threads, const char* function)
    : threads_(threads) {
  std::lock_guard lock(threads.mutex_);
  if (threads.stopping_) throw Stopped{};
  threads.inside_ = function;
  threads.inside_since_ = Clock::now();
}

CommunicatorThreads::Inside::~Inside() {
  std::lock_guard lock(threads_.mutex_);
  threads_.inside_ = nullptr;
  if (threads_.stopping_) threads_.to_caller_.notify_all();  // RunAbort
}

Comm CommunicatorThreads::handle() const { return std::atomic_ref<Comm>(handle_).load(); }

void CommunicatorThreads::Run() {
  std::string error;
  try {
    if (options_.prepare_thread) {
      const Inside inside(*this, "prepare_thread");
      options_.prepare_thread();
    }
    Init();
    while (Turn()) {
    }
    Finish();
  } catch (const Stopped&) {
  } catch (const std::exception& thrown) {
    error = thrown.what();
    if (error.empty()) error = "an exception without a message";
  }
  std::lock_guard lock(mutex_);
  reported_ = error;
  thread_done_ = true;
  to_watchdog_.notify_all();
  to_caller_.notify_all();
}

void CommunicatorThreads::Init() {
  Config config;
  config.blocking = 0;
  Result result;
  {
    const Inside inside(*this, "ncclCommInitRankConfig");
    result = options_.api->functions().comm_init_rank_config(
        &handle_, static_cast<int>(options_.world_ranks.size()), options_.id, options_.rank,
        &config);
  }
  Settle("ncclCommInitRankConfig", result);
  std::lock_guard lock(mutex_);
  ready_ = true;
  to_caller_.notify_all();
}

// Returns false at the end.
bool CommunicatorThreads::Turn() {
  OperationPtr next;
  std::vector<OperationPtr> under_way;
  {
    std::unique_lock lock(mutex_);
    const std::chrono::microseconds pause = num_queued_ > 0 ? kBusyPause : kIdlePause;
    to_thread_.wait_for(lock, pause, [this] {
      return stopping_ || operations_.size() > num_queued_ || (finishing_ && operations_.empty());
    });
    if (stopping_) throw Stopped{};
    if (finishing_ && operations_.empty()) return false;
    if (operations_.size() > num_queued_) next = current_ = operations_[num_queued_];
  }
  if (next != nullptr) {
    Queue(*next);
    // Before the caller is told, so that an event is recorded directly behind the operation.
    const bool complete = IsComplete(*next);
    {
      std::lock_guard lock(mutex_);
      if (stopping_) throw Stopped{};
      ++num_queued_;
      current_ = nullptr;
    }
    next->SetQueued();
    if (complete) Complete(next);
    // Queues a whole burst of calls first, and checks for progress in between.
    if (Clock::now() < swept_ + kSweepPause) return true;
  }
  {
    std::lock_guard lock(mutex_);
    if (stopping_) throw Stopped{};
    under_way.assign(operations_.begin(),
                     operations_.begin() + static_cast<std::ptrdiff_t>(num_queued_));
  }
  for (const OperationPtr& operation : under_way) {
    SetCurrent(operation);
    if (IsComplete(*operation)) Complete(operation);
  }
  SetCurrent(nullptr);
  const Result state = AsyncError();
  if (state != kInProgress) Settle("ncclCommGetAsyncError", state);
  swept_ = Clock::now();
  return true;
}

void CommunicatorThreads::SetCurrent(const OperationPtr& operation) {
  std::lock_guard lock(mutex_);
  current_ = operation;
}

void CommunicatorThreads::Queue(Operation& operation) {
  if (operation.call().before) {
    const Inside inside(*this, "preparation");
    operation.call().before();
  }
  const char* const function = FunctionName(operation.call());
  Result result;
  {
    const Inside inside(*this, function);
    result = Enqueue(*options_.api, operation.call(), static_cast<int>(options_.world_ranks.size()),
                     handle());
  }
  Settle(function, result);
  if (operation.call().after) {
    const Inside inside(*this, "continuation");
    operation.call().after();
  }
}

bool CommunicatorThreads::IsComplete(const Operation& operation) {
  const Inside inside(*this, "is_complete");
  return operation.call().is_complete();
}

void CommunicatorThreads::Complete(const OperationPtr& operation) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) throw Stopped{};  // the watchdog fails the operations
    operations_.erase(std::find(operations_.begin(), operations_.end(), operation));
    --num_queued_;
  }
  operation->SetRecord("");
  operation->Finish("");
}

Result CommunicatorThreads::AsyncError() {
  const Inside inside(*this, "ncclCommGetAsyncError");
  Result state = kInProgress;
  const Result result = options_.api->functions().comm_get_async_error(handle(), &state);
  return result == kSuccess ? state : result;
}

void CommunicatorThreads::Settle(const char* function, Result result) {
  for (Backoff backoff; result == kInProgress; result = AsyncError()) {
    const std::chrono::microseconds pause = backoff.Next();
    if (pause.count() == 0) {
      std::this_thread::yield();
      continue;
    }
    ++num_sleeps_;
    std::unique_lock lock(mutex_);
    to_thread_.wait_for(lock, pause, [this] { return stopping_; });
  }
  if (result == kSuccess) return;
  std::string error = std::string(function) + " reports " + options_.api->Describe(result);
  const Inside inside(*this, "ncclGetLastError");
  const char* const last = options_.api->functions().get_last_error(handle());
  if (last != nullptr && *last != '\0') error += std::string(" (") + last + ")";
  throw CommError(error);
}

void CommunicatorThreads::Finish() {
  Result result;
  {
    const Inside inside(*this, "ncclCommFinalize");
    result = options_.api->functions().comm_finalize(handle());
  }
  Settle("ncclCommFinalize", result);
  const Inside inside(*this, "ncclCommDestroy");
  {
    std::lock_guard lock(mutex_);
    destroying_ = true;
  }
  result = options_.api->functions().comm_destroy(handle());
  if (result != kSuccess && result != kInProgress) {
    throw CommError("ncclCommDestroy reports " + options_.api->Describe(result));
  }
}

}  // namespace apogee::comm::nccl
