// SPDX-License-Identifier: Apache-2.0

// The communicator's watchdog, and its actions when something is wrong.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <utility>

#include "apogee/comm/failure/give_up.h"
#include "apogee/comm/failure/run_within.h"
#include "apogee/comm/nccl/communicator_threads.h"

namespace apogee::comm::nccl {
namespace {

constexpr std::chrono::milliseconds kTick(10);
// How long the thread that calls NCCL has to leave NCCL before the abort.
constexpr std::chrono::milliseconds kLeave(100);
// Limit for calls outside of NCCL that may hang: telling the peers, and writing the flight record.
// Both together with kTick must be less than kGrace.
constexpr std::chrono::milliseconds kOutside(200);

std::string Seconds(Clock::duration duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f s", std::chrono::duration<double>(duration).count());
  return text;
}

}  // namespace

void CommunicatorThreads::Watch() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    to_watchdog_.wait_for(lock, kTick);
    if (ended_ || !failed_.empty()) continue;
    const std::string why = WhyFailed(Clock::now());
    if (!why.empty()) Fail(lock, why);
  }
}

// Returns "" if it is not stuck.
std::string CommunicatorThreads::WhereStuck(Clock::time_point now) const {
  if (inside_ == nullptr || now < inside_since_ + kLeave) return "";
  std::string text = "; the thread that calls NCCL has been in " + std::string(inside_);
  if (current_ != nullptr) text += " of " + current_->name();
  return text + " for " + Seconds(now - inside_since_);
}

// Returns "" if all is well.
std::string CommunicatorThreads::WhyFailed(Clock::time_point now) const {
  const std::string communicator = "NCCL communicator of group " + options_.name;
  if (!reported_.empty()) {
    std::string subject = communicator;
    if (current_ != nullptr) {
      subject = current_->name();
    } else if (!operations_.empty()) {
      subject = operations_.front()->name();
    }
    return subject + ": " + reported_;
  }
  if (thread_done_) return "";
  const std::string late = " within " + Seconds(options_.timeout);
  if (!ready_ && now > init_deadline_) {
    return communicator + ": not ready" + late +
           ": a member has not made its communicator, or NCCL cannot reach it" + WhereStuck(now);
  }
  if (!operations_.empty() && now > operations_.front()->deadline()) {
    const bool queued = num_queued_ > 0;
    return operations_.front()->name() + ": not complete" + late +
           (queued ? ": NCCL has queued it, and the device has not completed it"
                   : ": NCCL has not queued it") +
           "; a member has not called it or has failed" + WhereStuck(now);
  }
  if (inside_ != nullptr && now > inside_since_ + options_.timeout) {
    return communicator + ": NCCL does not return" + WhereStuck(now);
  }
  if (finishing_ && now > finish_deadline_) {
    return communicator + ": not ended" + late + ": a member has not ended its own" +
           WhereStuck(now);
  }
  return "";
}

void CommunicatorThreads::Fail(std::unique_lock<std::mutex>& lock, const std::string& why) {
  failed_ = why;
  stopping_ = true;
  abort_started_ = Clock::now();
  const std::deque<OperationPtr> operations = std::exchange(operations_, {});
  num_queued_ = 0;
  to_thread_.notify_all();
  try {
    abort_ = std::thread([this] { RunAbort(); });
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "apogee: no thread for ncclCommAbort: %s\n", error.what());
  }
  const bool told = aborted_ || !ready_ || !operations.empty();
  const bool tell_peers = options_.tell_peers && !aborted_;
  lock.unlock();

  if (!told) std::fprintf(stderr, "apogee: rank %d: %s\n", world_rank(), why.c_str());
  const auto error_of = [&](const Operation& operation) {
    return why.starts_with(operation.name() + ": ")
               ? why
               : operation.name() + ": its communicator has failed: " + why;
  };
  for (const OperationPtr& operation : operations) operation->SetRecord(error_of(*operation));
  if (tell_peers) {
    RunWithin(kOutside, [tell = options_.tell_peers, why] {
      try {
        tell(why);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "apogee: peers cannot be told that %s: %s\n", why.c_str(),
                     error.what());
      }
    });
  }
  options_.record->WriteWithin(kOutside);
  for (const OperationPtr& operation : operations) operation->Finish(error_of(*operation));

  lock.lock();
  report_done_ = true;
  to_caller_.notify_all();
}

void CommunicatorThreads::RunAbort() {
  std::unique_lock lock(mutex_);
  const auto outside = [this] { return inside_ == nullptr; };
  if (handle() == nullptr || destroying_) {
    to_caller_.wait(lock, outside);  // until then there is nothing to abort
  } else {
    to_caller_.wait_for(lock, kLeave, outside);  // the thread may only get free by the abort
  }
  const Comm comm = destroying_ ? nullptr : handle();
  lock.unlock();
  if (comm != nullptr) {
    try {
      if (options_.prepare_thread) options_.prepare_thread();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "apogee: before ncclCommAbort: %s\n", error.what());
    }
    const Result result = options_.api->functions().comm_abort(comm);
    if (result != kSuccess && result != kInProgress) {
      std::fprintf(stderr, "apogee: rank %d: ncclCommAbort reports %s\n", world_rank(),
                   options_.api->Describe(result).c_str());
    }
  }
  lock.lock();
  abort_done_ = true;
  to_caller_.notify_all();
}

// A thread inside NCCL cannot be ended, and the memory it uses cannot be freed. The flight record
// has been written by now.
void CommunicatorThreads::EndProcess() {
  const auto now = Clock::now();
  const std::string stuck =
      abort_done_ ? "" : "; ncclCommAbort has not returned for " + Seconds(now - abort_started_);
  std::fprintf(stderr, "apogee: rank %d ends its process with exit code %d: %s%s%s\n", world_rank(),
               kExitCode, failed_.c_str(), WhereStuck(now).c_str(), stuck.c_str());
  std::_Exit(kExitCode);
}

}  // namespace apogee::comm::nccl
