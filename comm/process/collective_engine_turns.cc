// SPDX-License-Identifier: Apache-2.0

// The engine's turns: how threads take them, and the work in one turn.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apogee/comm/failure/give_up.h"
#include "apogee/comm/process/collective_engine.h"

namespace apogee::comm::process {
namespace {

// How a polling thread waits: shortly after an event it polls again at once, then it yields its
// core between polls, then it sleeps. While data is moving it sleeps later, because the transport
// moves data piece by piece inside the polls.
constexpr std::chrono::microseconds kEager(5), kAlert(50), kAlertWhileMoving(2000);
constexpr std::chrono::microseconds kShortestNap(20), kLongestNap(1000), kIdleNap(5000);

class Pace {
 public:
  // Call after each poll; `event`: whether it found something. `sleep` gets the longest nap.
  template <typename Fn>
  void Rest(bool event, bool moving, const Fn& sleep) {
    now_ = Clock::now();
    if (event) {
      last_event_ = now_;
      nap_ = kShortestNap;
    }
    const auto quiet = now_ - last_event_;
    if (quiet < kEager) return;
    if (quiet < (moving ? kAlertWhileMoving : kAlert)) return std::this_thread::yield();
    sleep(nap_);
    nap_ = std::min(2 * nap_, kLongestNap);
  }
  // When the last poll ended.
  Clock::time_point now() const { return now_; }

 private:
  Clock::time_point now_ = Clock::now(), last_event_ = now_;
  std::chrono::microseconds nap_ = kShortestNap;
};

}  // namespace

// Does all work there is now. Returns whether anything has happened.
bool CollectiveEngine::Round() {
  ++rounds_;
  now_ = Clock::now();
  bool event = RunCommands();
  try {
    events_.arrived.clear();
    events_.completed.clear();
    events_.gone.clear();
    if (transport_->Poll(events_)) event = true;
    for (const uint64_t id : events_.completed) Land(id);
    for (auto& message : events_.arrived) {
      heard_[static_cast<size_t>(message.from)] = now_;
      if (auto decoded = Decode(std::move(message.bytes))) {
        Handle(message.from, *std::move(decoded));
      }
    }
    for (const Transport::Gone& gone : events_.gone) HasGone(gone);
    CheckEnds();
  } catch (const Error& error) {
    BreakDown(error.what());
  }
  NoteWhetherBusy();
  return event;
}

// Runs until this process exits, and then until every process is about to exit.
void CollectiveEngine::Loop() {
  Pace pace;
  while (true) {
    bool event = false;
    if (std::unique_lock turn(turn_, std::try_to_lock); !turn) {
      if (IsStuck()) {
        std::fprintf(stderr, "apogee: rank %d ends with exit code %d: %s does not return\n", rank_,
                     kExitCode, TransportName().c_str());
        std::_Exit(kExitCode);
      }
    } else if (num_drivers_ == 0) {  // else waiting threads do the work themselves
      event = Round();
      if (MayLeave()) return;
    }
    pace.Rest(event, is_moving_, [this](auto nap) { Sleep(nap); });
  }
}

void CollectiveEngine::Drive(Completion& completion, Clock::time_point until) {
  if (completion.IsDone()) return;
  ++num_drivers_;
  Pace pace;
  while (pace.now() < until) {
    bool event = false;
    {
      const std::unique_lock turn(turn_, std::try_to_lock);
      if (turn) event = Round();
    }
    if (completion.IsDone()) break;
    // Another thread may have the turn and complete the operation.
    pace.Rest(event, is_moving_, [&](auto nap) { completion.WaitUntilDone(nap); });
  }
  --num_drivers_;
  if (is_busy_) Wake();
}

void CollectiveEngine::NoteWhetherBusy() {
  bool busy = !flights_.empty();
  for (const uint32_t number : open_sessions_) {
    const Session& session = sessions_[number];
    busy = busy || !session.pending.empty() || session.on_end != nullptr ||
           session.failed_at != Clock::time_point{};
  }
  is_busy_ = busy;
  is_moving_ = !flights_.empty();
}

void CollectiveEngine::Command(std::function<void()> command) {
  std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  has_commands_ = true;
  wake_.notify_one();
}

bool CollectiveEngine::RunCommands() {
  if (!has_commands_) return false;
  std::deque<std::function<void()>> commands;
  {
    std::lock_guard lock(mutex_);
    commands.swap(commands_);
    has_commands_ = false;
  }
  for (auto& command : commands) {
    try {
      command();
    } catch (const Error& error) {
      BreakDown(error.what());
    }
  }
  return !commands.empty();
}

void CollectiveEngine::Sleep(std::chrono::microseconds nap) {
  std::unique_lock lock(mutex_);
  if (!is_busy_ && !stopping_) nap = kIdleNap;
  wake_.wait_for(lock, nap, [this] { return woken_ || !commands_.empty(); });
  woken_ = false;
}

void CollectiveEngine::Wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  wake_.notify_one();
}

bool CollectiveEngine::IsStuck() {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (rounds_ != rounds_seen_ || rounds_seen_at_ == Clock::time_point{}) {
    rounds_seen_ = rounds_;
    rounds_seen_at_ = now;
  }
  return now - rounds_seen_at_ > kSilence;
}

}  // namespace apogee::comm::process
