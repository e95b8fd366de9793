// SPDX-License-Identifier: Apache-2.0

// The engine's sessions: their begin and their end, and giving up processes that do not end.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apogee/comm/failure/give_up.h"
#include "apogee/comm/process/collective_engine.h"

namespace apogee::comm::process {
namespace {

std::string Seconds(Clock::duration duration) {
  return std::to_string(std::chrono::duration<double>(duration).count()).substr(0, 4) + " s";
}

}  // namespace

uint32_t CollectiveEngine::Begin(std::shared_ptr<FlightRecord> record,
                                 std::chrono::milliseconds timeout) {
  uint32_t number;
  {
    std::lock_guard lock(mutex_);
    number = next_session_++;
  }
  Command([this, number, record = std::move(record), timeout] {
    Session& session = sessions_[number];
    session.record = record;
    session.timeout = timeout;
    open_sessions_.insert(number);
    for (int r = 0; r < size_; ++r) session.active.try_emplace(r, Clock::now());
    for (const Transport::Gone& gone : gone_) {
      Left(number, gone.rank, {.ending = Ending::kThrew, .text = gone.why, .lost = true});
    }
  });
  return number;
}

void CollectiveEngine::SetOnDeviceFailure(uint32_t number, OnDeviceFailure on_failure) {
  Command([this, number, on_failure = std::move(on_failure)] {
    sessions_[number].on_device_failure = on_failure;
  });
}

std::vector<RankEnding> CollectiveEngine::End(uint32_t number, const RankEnding& own) {
  const auto ended = std::make_shared<Completion>();
  std::vector<RankEnding> endings(static_cast<size_t>(size_));
  Command([&, number] {
    PostToAll(
        {.kind = MessageKind::kLeft, .ending = own.ending, .session = number, .text = own.text});
    Session& session = sessions_[number];
    std::fill(heard_.begin(), heard_.end(), Clock::now());
    session.on_end = [&] {
      for (const auto& [r, ending] : session.endings) endings[static_cast<size_t>(r)] = ending;
      ended->Finish("");
    };
    Left(number, rank_, own);
  });
  while (!ended->WaitFor(std::chrono::milliseconds(500))) {
    if (IsStuck()) {
      // The stack must not be unwound while the engine's thread could still use it.
      std::fprintf(stderr, "apogee: rank %d cannot end in order: %s does not return%s%s\n", rank_,
                   TransportName().c_str(),
                   own.text.empty() ? "" : "; this rank: ", own.text.c_str());
      std::_Exit(kExitCode);
    }
  }
  return endings;
}

void CollectiveEngine::CheckEnds() {
  for (auto next = open_sessions_.begin(); next != open_sessions_.end();) {
    const uint32_t number = *next++;  // the session may be closed below
    CheckEnd(number, sessions_[number]);
  }
}

Clock::time_point CollectiveEngine::GiveUpRankAt(const Session& session, int rank) const {
  const auto active = rank == rank_ ? session.record->active_at() : session.active.at(rank);
  return GiveUpAt(session.awaited.contains(rank), session.failed_at, active, session.timeout);
}

// Ends a session that this process has left, once all others have left it too and no operation of
// it is running.
void CollectiveEngine::CheckEnd(uint32_t number, Session& session) {
  const auto now = now_;
  const bool failed = session.failed_at != Clock::time_point{};
  if (session.on_end == nullptr) {
    // The others give this process up at the same time; they print that before they abort the job.
    if (failed && now > GiveUpRankAt(session, rank_) + 2 * kGrace) GiveUpOnItself(session);
    return;
  }
  std::set<int> awaited, silent;
  for (int r = 0; r < size_; ++r) {
    if (!session.endings.contains(r)) awaited.insert(r);
  }
  std::set<int> asked = awaited;
  for (const OperationPtr& operation : session.pending) {
    for (const int r : operation->ranks) {
      if (r != rank_) asked.insert(r);
    }
  }
  AskSilent(number, asked, silent);
  std::map<int, std::string> lost;
  for (const int r : silent) {
    lost[r] = "has not answered for " + Seconds(now - heard_[static_cast<size_t>(r)]) +
              ": its process or machine is stopped or gone";
  }
  for (const int r : awaited) {
    if (!failed || now <= GiveUpRankAt(session, r)) continue;
    const auto unheard = now - heard_[static_cast<size_t>(r)];
    const std::string idle = Seconds(now - session.active.at(r));
    lost[r] = unheard < kGrace
                  ? "is still in its function and has called no collective for " + idle +
                        ", though its process answers"
                  : "has called no collective for " + idle + " and does not answer: its process " +
                        "or machine is stopped or gone";
  }
  for (const auto& [r, why] : lost) {
    unclean_ = true;
    lost_.insert(r);
    Left(number, r, {.ending = Ending::kThrew, .text = why, .lost = true});
    transport_->Post(r, Encode({.kind = MessageKind::kGivenUp, .session = number, .text = why}));
  }
  if (session.endings.size() < static_cast<size_t>(size_) || !session.pending.empty()) {
    // Operations that wait for, or exchange data with, a lost process end here.
    if (!unclean_ || session.endings.size() < static_cast<size_t>(size_)) return;
    while (!session.pending.empty()) Finish(session.pending.front(), "a process is lost");
  }
  session.on_end();
  session = Session();
  session.ended = true;
  open_sessions_.erase(number);
  idle_since_ = now;
}

// The transport has lost a process: operations that wait for it fail before their timeout.
void CollectiveEngine::HasGone(const Transport::Gone& gone) {
  unclean_ = true;
  lost_.insert(gone.rank);
  gone_.push_back(gone);
  const std::set<uint32_t> open = open_sessions_;
  for (const uint32_t number : open) {
    Left(number, gone.rank, {.ending = Ending::kThrew, .text = gone.why, .lost = true});
  }
}

// This process was stopped meanwhile. The others are ending the job and no longer answer.
void CollectiveEngine::GivenUp(uint32_t number, int by, const std::string& why) {
  unclean_ = given_up_ = true;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    Left(number, r,
         {.ending = Ending::kThrew,
          .text = "has ended the job: rank " + std::to_string(by) + " found that rank " +
                  std::to_string(rank_) + " " + why,
          .lost = true});
  }
}

// This process' function does not return, and possibly no other process is left to end the job.
void CollectiveEngine::GiveUpOnItself(const Session& session) {
  std::fprintf(stderr,
               "apogee: rank %d ends the job with exit code %d: another rank has failed, and this "
               "one is still in its function and has called no collective for %s\n",
               rank_, kExitCode, Seconds(Clock::now() - session.record->active_at()).c_str());
  session.record->WriteWithin(std::chrono::milliseconds(200));
  EndJob();
}

}  // namespace apogee::comm::process
