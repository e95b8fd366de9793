// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/process/collective_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apogee/comm/failure/give_up.h"
#include "apogee/comm/failure/run_within.h"
#include "apogee/comm/process/starter.h"

namespace apogee::comm::process {
namespace {

// Time limits of the transport's Finish, once all processes have announced that they will call it,
// and of its Abort.
constexpr std::chrono::milliseconds kFinishTimeout(30'000), kAbortTimeout(1000);
// Before it aborts the job, a process gives the others, which also noticed the loss, time to print.
constexpr std::chrono::milliseconds kLastWords(300);

}  // namespace

absl::StatusOr<CollectiveEngine*> CollectiveEngine::OfProcess() {
  // MPI can be started and ended only once per process: it is a global, and so is this object. Its
  // destructor ends the transport when the process exits.
  static CollectiveEngine engine;
  std::unique_lock lock(engine.mutex_);
  engine.progress_.wait(lock, [] { return engine.started_.has_value(); });
  if (!engine.started_->ok()) return *engine.started_;
  return &engine;
}

CollectiveEngine::CollectiveEngine() : process_(getpid()), thread_([this] { Run(); }) {}

CollectiveEngine::~CollectiveEngine() {
  if (getpid() != process_) {  // a forked child has no such thread and is not part of the job
    thread_.detach();
    return;
  }
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_one();
  // Watches the engine's thread, which may be inside the transport. Apart from MPI's own calls, all
  // calls there have time limits of their own.
  uint64_t seen = rounds_;
  auto seen_at = Clock::now();
  while (!progress_.wait_for(lock, std::chrono::milliseconds(100), [this] { return finished_; })) {
    if (rounds_ != seen) seen_at = Clock::now();
    seen = rounds_;
    if (Clock::now() - seen_at < kFinishTimeout) continue;
    std::fprintf(stderr, "apogee: rank %d cannot end in order: %s does not return\n", rank_,
                 TransportName().c_str());
    std::_Exit(kExitCode);
  }
  lock.unlock();
  thread_.join();
}

void CollectiveEngine::Run() {
  absl::Status status;
  try {
    auto transport = StartTransport();
    status = transport.status();
    if (status.ok()) transport_ = *std::move(transport);
  } catch (const Error& error) {
    status = absl::UnavailableError(error.what());
  }
  if (transport_ != nullptr) {
    rank_ = transport_->rank();
    size_ = transport_->size();
    idle_since_ = Clock::now();
    heard_.resize(static_cast<size_t>(size_), idle_since_);
  }
  {
    std::lock_guard lock(mutex_);
    started_ = status;
    progress_.notify_all();
  }
  if (transport_ != nullptr) {
    try {
      Loop();
      Leave();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "apogee: rank %d: %s\n", rank_, error.what());
      EndJob();
    }
  }
  std::lock_guard lock(mutex_);
  finished_ = true;
  progress_.notify_all();
}

// Whether the process is exiting and has nothing more to send or to receive.
bool CollectiveEngine::MayLeave() {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) return false;
  }
  try {
    if (stopped_at_ == Clock::time_point{}) {
      for (const uint32_t number : open_sessions_) {
        if (sessions_[number].on_end != nullptr) continue;
        PostToAll({.kind = MessageKind::kLeft,
                   .ending = Ending::kThrew,
                   .session = number,
                   .text = "ended its process within the launched function"});
      }
      PostToAll({.kind = MessageKind::kExit});
      exiting_.insert(rank_);
      stopped_at_ = Clock::now();
      std::fill(heard_.begin(), heard_.end(), stopped_at_);
    }
    if (unclean_ && !OthersMayStillSpeak()) return true;
    std::set<int> awaited, lost;
    for (int r = 0; r < size_; ++r) {
      if (!exiting_.contains(r)) awaited.insert(r);
    }
    if (AskSilent(0, awaited, lost)) unclean_ = true;
    if (awaited.empty()) {
      if (transport_->num_in_flight() == 0) return true;
      // Left over from a failed collective: nobody will ever send or receive it.
      if (all_exiting_at_ == Clock::time_point{}) all_exiting_at_ = Clock::now();
      if (Clock::now() - all_exiting_at_ > kSilence) unclean_ = true;
    }
  } catch (const Error& error) {
    BreakDown(error.what());
  }
  return false;
}

void CollectiveEngine::BreakDown(const std::string& error) {
  if (!broken_.empty()) return;
  broken_ = std::string(transport_->name()) + " failed: " + error;
  unclean_ = true;
  for (auto& [number, session] : sessions_) {
    while (!session.pending.empty()) {
      const OperationPtr operation = session.pending.front();
      Finish(operation, operation->Name() + ": " + broken_);
    }
    for (int r = 0; session.on_end != nullptr && r < size_; ++r) {
      session.endings.try_emplace(
          r, RankEnding{.ending = Ending::kThrew, .text = broken_, .lost = true});
    }
  }
}

// Whether a process that is not lost may still have to print its error.
bool CollectiveEngine::OthersMayStillSpeak() {
  if (Clock::now() - stopped_at_ > kLastWords) return false;
  for (int r = 0; r < size_; ++r) {
    if (!exiting_.contains(r) && !lost_.contains(r)) return true;
  }
  return false;
}

void CollectiveEngine::Leave() {
  if (!unclean_) return transport_->Finish();
  if (given_up_) {
    std::fprintf(stderr, "apogee: rank %d ends with exit code %d: the others have given it up\n",
                 rank_, kExitCode);
    std::_Exit(kExitCode);
  }
  // One process aborts for all, because several aborts at once have crashed Open MPI's mpirun.
  int first = 0;
  while (lost_.contains(first)) ++first;
  if (first != rank_) std::this_thread::sleep_for(kAbortTimeout * 2 / 3);
  std::fprintf(stderr,
               "apogee: rank %d ends the job with exit code %d: a process is lost, and %s cannot "
               "end in order without it\n",
               rank_, kExitCode, TransportName().c_str());
  EndJob();
}

// Ends the job even if the transport does not return.
void CollectiveEngine::EndJob() {
  RunWithin(kAbortTimeout, [this] { transport_->Abort(kExitCode); });
  std::_Exit(kExitCode);
}

}  // namespace apogee::comm::process
