// SPDX-License-Identifier: Apache-2.0

// Engine: the threads of a communicator.
//
//   Engine engine(options);
//   engine.Start();
//   engine.WaitReady();            // throws CommError; End must be called all the same
//   engine.Add(operation);
//   engine.End();
//
// One thread makes all calls of NCCL (Run), so that no other ever sits in one that does not return.
// The watchdog (Watch) never calls NCCL: it looks at deadlines and at how long the first thread has
// been where it is. When something is wrong it has ncclCommAbort called in a third thread
// (RunAbort), tells the peers, writes the flight record and fails all operations. End waits for
// that abort until kGrace after its beginning, and no longer. Private to comm/nccl.
#ifndef APOGEE_COMM_NCCL_ENGINE_H_
#define APOGEE_COMM_NCCL_ENGINE_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "apogee/comm/nccl/operation.h"
#include "apogee/comm/nccl/options.h"

namespace apogee::comm::nccl {

class Engine {
 public:
  explicit Engine(CommunicatorOptions options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void Start();
  // Returns when NCCL's communicator is ready. Throws CommError when it is not within the timeout.
  void WaitReady();
  // Fails it as an error of NCCL does.
  void Abort(const std::string& why);
  // Throws CommError when the communicator has failed.
  void Add(const OperationPtr& operation);
  // Waits for what is under way and destroys NCCL's communicator. Where it has failed and a thread
  // is still inside of NCCL after kGrace, ends the process with kExitCode.
  void End();

 private:
  // Unwinds the thread that calls NCCL.
  struct Stopped {};
  // Where that thread is. Throws Stopped once it must not call NCCL any more.
  class Inside {
   public:
    Inside(Engine& engine, const char* function);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Engine& engine_;
  };

  // engine_calls.cc: in the thread that calls NCCL.
  void Run();
  void Init();
  bool Turn();
  void SetCurrent(const OperationPtr& operation);
  void Queue(Operation& operation);
  bool IsComplete(const Operation& operation);
  void Complete(const OperationPtr& operation);
  Result AsyncError();
  // Until the communicator is no longer in progress.
  void Settle(const char* function, Result result);
  void Finish();

  // engine_watch.cc: in the watchdog and in the thread that aborts.
  void Watch();
  std::string WhyFailed(Clock::time_point now) const;
  std::string WhereStuck(Clock::time_point now) const;
  void Fail(std::unique_lock<std::mutex>& lock, const std::string& why);
  void RunAbort();
  [[noreturn]] void EndProcess();

  // NCCL writes it from a thread of its own while the communicator is being made.
  Comm handle() const;
  int world_rank() const { return options_.world_ranks[static_cast<size_t>(options_.rank)]; }

  const CommunicatorOptions options_;
  mutable Comm handle_ = nullptr;
  Clock::time_point swept_ = {};  // of the thread that calls NCCL

  std::mutex mutex_;
  std::condition_variable to_thread_, to_watchdog_, to_caller_;
  std::deque<OperationPtr> operations_;  // not complete; the first num_queued_ are with NCCL
  size_t num_queued_ = 0;
  OperationPtr current_;  // whose error it is when the thread that calls NCCL reports one
  const char* inside_ = nullptr;
  Clock::time_point inside_since_ = {};
  std::string reported_;  // by the thread that calls NCCL, and what the watchdog has made of it:
  std::string failed_;
  bool aborted_ = false;  // by the caller, who knows why
  bool ready_ = false, stopping_ = false, finishing_ = false, destroying_ = false, ended_ = false;
  bool thread_done_ = false, abort_done_ = false, report_done_ = false;
  Clock::time_point init_deadline_ = {}, finish_deadline_ = {}, abort_started_ = {};
  std::thread thread_, watchdog_, abort_;
};

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_ENGINE_H_
