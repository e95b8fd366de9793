// SPDX-License-Identifier: Apache-2.0

// CommunicatorThreads: the threads of a communicator, by which it calls NCCL.
//
//   CommunicatorThreads threads(options);
//   threads.Start();
//   threads.WaitReady();           // may throw CommError; call End all the same
//   threads.Add(operation);
//   threads.End();
//
// One thread makes all NCCL calls (Run), so no other thread can get stuck in a call that does not
// return. The watchdog thread (Watch) never calls NCCL. It checks the deadlines, and how long the
// first thread has been inside NCCL. If something is wrong, it starts a third thread that calls
// ncclCommAbort (RunAbort), tells the peers, writes the flight record and fails all operations. End
// waits for the abort at most until kGrace after its start. Private to comm/nccl.
#ifndef APOGEE_COMM_NCCL_COMMUNICATOR_THREADS_H_
#define APOGEE_COMM_NCCL_COMMUNICATOR_THREADS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "apogee/comm/nccl/operation.h"
#include "apogee/comm/nccl/options.h"

namespace apogee::comm::nccl {

class CommunicatorThreads {
 public:
  explicit CommunicatorThreads(CommunicatorOptions options);
  CommunicatorThreads(const CommunicatorThreads&) = delete;
  CommunicatorThreads& operator=(const CommunicatorThreads&) = delete;

  void Start();
  // Returns when NCCL's communicator is ready. Throws CommError if that exceeds the timeout.
  void WaitReady();
  // Fails the communicator as an error of NCCL does.
  void Abort(const std::string& why);
  // Throws CommError if the communicator has failed.
  void Add(const OperationPtr& operation);
  // Waits for running operations and destroys NCCL's communicator. If the communicator has failed
  // and a thread is still inside NCCL after kGrace, ends the process with kExitCode.
  void End();
  int64_t num_sleeps() const { return num_sleeps_; }

 private:
  // Thrown to unwind the thread that calls NCCL.
  struct Stopped {};
  // Notes which NCCL function that thread is in. Throws Stopped if it must not call NCCL any more.
  class Inside {
   public:
    Inside(CommunicatorThreads& threads, const char* function);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    CommunicatorThreads& threads_;
  };

  // communicator_calls.cc, on the thread that calls NCCL:
  void Run();
  void Init();
  bool Turn();
  void SetCurrent(const OperationPtr& operation);
  void Queue(Operation& operation);
  bool IsComplete(const Operation& operation);
  void Complete(const OperationPtr& operation);
  Result AsyncError();
  // Waits until the communicator is no longer in progress.
  void Settle(const char* function, Result result);
  void Finish();

  // communicator_watch.cc, on the watchdog and on the thread that aborts:
  void Watch();
  std::string WhyFailed(Clock::time_point now) const;
  std::string WhereStuck(Clock::time_point now) const;
  void Fail(std::unique_lock<std::mutex>& lock, const std::string& why);
  void RunAbort();
  [[noreturn]] void EndProcess();

  // NCCL writes the handle from a thread of its own while it makes the communicator.
  Comm handle() const;
  int world_rank() const { return options_.world_ranks[static_cast<size_t>(options_.rank)]; }

  const CommunicatorOptions options_;
  mutable Comm handle_ = nullptr;
  Clock::time_point swept_ = {};  // used by the thread that calls NCCL only
  std::atomic<int64_t> num_sleeps_ = 0;

  std::mutex mutex_;
  std::condition_variable to_thread_, to_watchdog_, to_caller_;
  std::deque<OperationPtr> operations_;  // not complete; the first num_queued_ are queued with NCCL
  size_t num_queued_ = 0;
  OperationPtr current_;  // the operation to blame when the thread that calls NCCL reports an error
  const char* inside_ = nullptr;
  Clock::time_point inside_since_ = {};
  std::string reported_;  // the error reported by the thread that calls NCCL
  std::string failed_;    // the error that the watchdog has set
  bool aborted_ = false;  // by the caller, which knows the reason
  bool ready_ = false, stopping_ = false, finishing_ = false, destroying_ = false, ended_ = false;
  bool thread_done_ = false, abort_done_ = false, report_done_ = false;
  Clock::time_point init_deadline_ = {}, finish_deadline_ = {}, abort_started_ = {};
  std::thread thread_, watchdog_, abort_;
};

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_COMMUNICATOR_THREADS_H_
