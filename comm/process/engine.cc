#include "apogee/comm/process/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace apogee::comm::process {
namespace {

constexpr std::chrono::duration<double> kSilence(kSilenceSeconds);
constexpr std::chrono::milliseconds kAskEvery(500);
// How long MPI_Finalize may take once all processes have said that they are about to call it.
constexpr std::chrono::seconds kFinishTimeout(30);

// The progress thread gives its core away without sleeping for this long after something happened.
constexpr std::chrono::microseconds kAlert(50);
constexpr std::chrono::microseconds kShortestNap(20), kLongestNap(1000), kIdleNap(5000);

}  // namespace

absl::StatusOr<Engine*> Engine::OfProcess() {
  // MPI can be started once in a process and ended once: it is a global, and so is this. Its
  // destructor ends MPI when the process exits.
  static Engine engine;
  std::unique_lock lock(engine.mutex_);
  engine.progress_.wait(lock, [] { return engine.started_.has_value(); });
  if (!engine.started_->ok()) return *engine.started_;
  return &engine;
}

Engine::Engine() : process_(getpid()), thread_([this] { Run(); }) {}

Engine::~Engine() {
  if (getpid() != process_) {  // a forked child has neither the thread nor a part in the job
    thread_.detach();
    return;
  }
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_one();
  // The watchdog of a thread that may be inside of MPI: it takes no step there without a limit of
  // its own, but for MPI's own calls.
  const auto alive = [&] {
    const uint64_t seen = rounds_;
    return progress_.wait_for(lock, kFinishTimeout, [this] { return finished_; }) ||
           rounds_ != seen;
  };
  while (!finished_) {
    if (alive()) continue;
    std::fprintf(stderr, "apogee: rank %d cannot end in order: MPI does not return\n", rank_);
    std::_Exit(kExitCode);
  }
  lock.unlock();
  thread_.join();
}

void Engine::Command(std::function<void()> command) {
  std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  wake_.notify_one();
}

void Engine::Run() {
  absl::Status status;
  try {
    auto transport = mpi::Transport::Start();
    status = transport.status();
    if (status.ok()) transport_ = *std::move(transport);
  } catch (const Error& error) {
    status = absl::UnavailableError(error.what());
  }
  if (transport_ != nullptr) {
    rank_ = transport_->rank();
    size_ = transport_->size();
    heard_.resize(static_cast<size_t>(size_), Clock::now());
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
      transport_->Abort(kExitCode);
    }
  }
  std::lock_guard lock(mutex_);
  finished_ = true;
  progress_.notify_all();
}

// Until the process exits, and then until every process is about to.
void Engine::Loop() {
  std::vector<mpi::Transport::Message> arrived;
  std::vector<uint64_t> completed;
  bool told = false;
  Clock::time_point all_exiting;
  while (true) {
    ++rounds_;
    bool event = RunCommands();
    try {
      arrived.clear();
      completed.clear();
      if (transport_->Poll(arrived, completed)) event = true;
      for (const uint64_t id : completed) Land(id);
      for (const auto& message : arrived) {
        heard_[static_cast<size_t>(message.from)] = Clock::now();
        if (const auto decoded = Decode(message.bytes)) Handle(message.from, *decoded);
      }
      CheckEnds();
      bool stopping;
      {
        std::lock_guard lock(mutex_);
        stopping = stopping_;
      }
      if (stopping) {
        if (unclean_) return;
        if (!told) {
          told = true;
          for (auto& [number, session] : sessions_) {
            if (session.ended || session.on_end != nullptr) continue;
            PostToAll({.kind = MessageKind::kLeft,
                       .ending = Ending::kThrew,
                       .session = number,
                       .text = "ended its process within the launched function"});
          }
          PostToAll({.kind = MessageKind::kExit});
          exiting_.insert(rank_);
          std::fill(heard_.begin(), heard_.end(), Clock::now());
        }
        std::set<int> awaited, lost;
        for (int r = 0; r < size_; ++r) {
          if (!exiting_.contains(r)) awaited.insert(r);
        }
        if (AskSilent(awaited, lost)) unclean_ = true;
        if (awaited.empty()) {
          if (transport_->num_in_flight() == 0) return;
          // What a failed collective has left behind: nobody will ever send or take it.
          if (all_exiting == Clock::time_point{}) all_exiting = Clock::now();
          if (Clock::now() - all_exiting > kSilence) unclean_ = true;
        }
      }
    } catch (const Error& error) {
      BreakDown(error.what());
    }
    const auto now = Clock::now();
    if (event) {
      last_event_ = now;
      nap_ = kShortestNap;
    } else if (now - last_event_ < kAlert) {
      std::this_thread::yield();
    } else {
      Sleep();
    }
  }
}

bool Engine::RunCommands() {
  std::deque<std::function<void()>> commands;
  {
    std::lock_guard lock(mutex_);
    commands.swap(commands_);
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

void Engine::Sleep() {
  bool waiting = !flights_.empty();
  for (const auto& [number, session] : sessions_) {
    waiting = waiting || !session.pending.empty() || (session.on_end && !session.ended);
  }
  std::unique_lock lock(mutex_);
  const auto nap = waiting || stopping_ ? nap_ : kIdleNap;
  wake_.wait_for(lock, nap, [this] { return !commands_.empty(); });
  nap_ = std::min(2 * nap_, kLongestNap);
}

// Asks those that have been silent whether they are there; puts those that do not answer into
// `lost`.
bool Engine::AskSilent(const std::set<int>& awaited, std::set<int>& lost) {
  const auto now = Clock::now();
  const bool ask = now - asked_ > kAskEvery;
  if (ask) asked_ = now;
  for (const int r : awaited) {
    if (ask) transport_->Post(r, Encode({.kind = MessageKind::kPing}));
    if (now - heard_[static_cast<size_t>(r)] > kSilence) lost.insert(r);
  }
  return !lost.empty();
}

void Engine::PostToAll(const Message& message) {
  const std::string bytes = Encode(message);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) transport_->Post(r, bytes);
  }
}

void Engine::Handle(int from, const Message& message) {
  if (message.kind == MessageKind::kPing) {
    return transport_->Post(from, Encode({.kind = MessageKind::kPong}));
  }
  if (message.kind == MessageKind::kPong) return;
  if (message.kind == MessageKind::kExit) {
    exiting_.insert(from);
    return;
  }
  Session& session = sessions_[message.session];
  if (session.ended) return;  // too late to matter
  switch (message.kind) {
    case MessageKind::kCall:
      for (const OperationPtr& operation : session.pending) {
        if (operation->channel == message.channel && operation->sequence == message.sequence) {
          const OperationPtr kept = operation;
          return Arrive(kept, from, message);
        }
      }
      session.early[{message.channel, message.sequence}].emplace_back(from, message);
      return;
    case MessageKind::kFailed:
      return FailGroup(message.session, message.channel, message.sequence, message.text);
    case MessageKind::kLeft:
      return Left(message.session, from, {.ending = message.ending, .text = message.text});
    default:
      return;
  }
}

uint32_t Engine::Begin() {
  std::lock_guard lock(mutex_);
  return next_session_++;
}

std::vector<RankEnding> Engine::End(uint32_t number, const RankEnding& own,
                                    std::chrono::milliseconds timeout) {
  const auto ended = std::make_shared<Completion>();
  std::vector<RankEnding> endings(static_cast<size_t>(size_));
  Command([&, number] {
    PostToAll(
        {.kind = MessageKind::kLeft, .ending = own.ending, .session = number, .text = own.text});
    Session& session = sessions_[number];
    session.timeout = timeout;
    const auto now = Clock::now();
    std::fill(heard_.begin(), heard_.end(), now);
    session.on_end = [&] {
      for (const auto& [r, ending] : session.endings) endings[static_cast<size_t>(r)] = ending;
      ended->Finish("");
    };
    Left(number, rank_, own);
  });
  while (!ended->WaitFor(std::chrono::milliseconds(500))) {
    if (IsStuck()) {
      // Nothing on this stack may go while the thread could still come back to it.
      std::fprintf(stderr, "apogee: rank %d cannot end in order: MPI does not return%s%s\n", rank_,
                   own.text.empty() ? "" : "; this rank: ", own.text.c_str());
      std::_Exit(kExitCode);
    }
  }
  return endings;
}

// Sessions that this process has left end when all others have and nothing of theirs is under way.
void Engine::CheckEnds() {
  for (auto& [number, session] : sessions_) {
    if (session.on_end == nullptr || session.ended) continue;
    std::set<int> awaited, lost;
    bool failed = false;
    for (int r = 0; r < size_; ++r) {
      const auto told = session.endings.find(r);
      if (told == session.endings.end()) {
        awaited.insert(r);
      } else {
        failed = failed || told->second.ending != Ending::kReturned;
      }
    }
    const auto now = Clock::now();
    if (failed && session.deadline == Clock::time_point{}) {
      session.deadline =
          now + session.timeout + std::chrono::duration_cast<Clock::duration>(kSilence);
    }
    std::string why = "has not answered for " + std::to_string(kSilenceSeconds).substr(0, 3) +
                      " s: its process or machine is stopped or gone";
    std::set<int> asked = awaited;
    for (const OperationPtr& operation : session.pending) {
      for (const int r : operation->ranks) {
        if (r != rank_) asked.insert(r);
      }
    }
    AskSilent(asked, lost);
    if (lost.empty() && failed && now > session.deadline) {
      lost = awaited;
      why = "had not ended when the others had waited for it after a failure";
    }
    for (const int r : lost) {
      unclean_ = true;
      Left(number, r, {.ending = Ending::kThrew, .text = why, .lost = true});
    }
    if (session.endings.size() < static_cast<size_t>(size_) || !session.pending.empty()) {
      // What still waits for a lost process, or exchanges with it, ends with it.
      if (!unclean_ || session.endings.size() < static_cast<size_t>(size_)) continue;
      while (!session.pending.empty()) Finish(session.pending.front(), "a process is lost");
    }
    session.ended = true;
    session.early.clear();
    const auto on_end = std::move(session.on_end);
    session.on_end = nullptr;
    on_end();
  }
}

void Engine::BreakDown(const std::string& error) {
  if (!broken_.empty()) return;
  broken_ = "MPI failed: " + error;
  unclean_ = true;
  for (auto& [number, session] : sessions_) {
    while (!session.pending.empty()) {
      const OperationPtr operation = session.pending.front();
      Finish(operation, operation->name + ": " + broken_);
    }
    for (int r = 0; session.on_end != nullptr && r < size_; ++r) {
      session.endings.try_emplace(
          r, RankEnding{.ending = Ending::kThrew, .text = broken_, .lost = true});
    }
  }
}

bool Engine::IsStuck() {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (rounds_ != rounds_seen_ || rounds_seen_at_ == Clock::time_point{}) {
    rounds_seen_ = rounds_;
    rounds_seen_at_ = now;
  }
  return now - rounds_seen_at_ > kSilence;
}

void Engine::Leave() {
  if (!unclean_) return transport_->Finish();
  std::fprintf(stderr,
               "apogee: rank %d ends the job with exit code %d: a process is lost, and MPI cannot "
               "end in order without it\n",
               rank_, kExitCode);
  transport_->Abort(kExitCode);
}

}  // namespace apogee::comm::process
