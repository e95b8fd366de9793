#include "apogee/comm/process/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apogee/comm/give_up.h"
#include "apogee/comm/run_within.h"

namespace apogee::comm::process {
namespace {

constexpr std::chrono::duration<double> kSilence(kSilenceSeconds);
constexpr std::chrono::milliseconds kAskEvery(200);
// How long MPI_Finalize may take once all processes have said that they are about to call it, and
// MPI_Abort.
constexpr std::chrono::milliseconds kFinishTimeout(30'000), kAbortTimeout(1000);
// Before it aborts the job a process gives the others, which have lost the same one, time to print.
constexpr std::chrono::milliseconds kLastWords(300);

// A thread that polls goes on at once for a moment after something happened, then gives its core
// away between looks, and then sleeps: later while data is on its way, which MPI moves piece by
// piece inside of the calls.
constexpr std::chrono::microseconds kEager(5), kAlert(50), kAlertWhileMoving(2000);
constexpr std::chrono::microseconds kShortestNap(20), kLongestNap(1000), kIdleNap(5000);

class Pace {
 public:
  // After a look in which something has happened, or nothing. `sleep` takes how long at most.
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
  // When the last look ended.
  Clock::time_point now() const { return now_; }

 private:
  Clock::time_point now_ = Clock::now(), last_event_ = now_;
  std::chrono::microseconds nap_ = kShortestNap;
};

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
  uint64_t seen = rounds_;
  auto seen_at = Clock::now();
  while (!progress_.wait_for(lock, std::chrono::milliseconds(100), [this] { return finished_; })) {
    if (rounds_ != seen) seen_at = Clock::now();
    seen = rounds_;
    if (Clock::now() - seen_at < kFinishTimeout) continue;
    std::fprintf(stderr, "apogee: rank %d cannot end in order: MPI does not return\n", rank_);
    std::_Exit(kExitCode);
  }
  lock.unlock();
  thread_.join();
}

void Engine::Command(std::function<void()> command) {
  std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  has_commands_ = true;
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

// Everything there is to do now. Returns whether anything has happened.
bool Engine::Round() {
  ++rounds_;
  now_ = Clock::now();
  bool event = RunCommands();
  try {
    arrived_.clear();
    completed_.clear();
    if (transport_->Poll(arrived_, completed_)) event = true;
    for (const uint64_t id : completed_) Land(id);
    for (auto& message : arrived_) {
      heard_[static_cast<size_t>(message.from)] = now_;
      if (auto decoded = Decode(std::move(message.bytes))) {
        Handle(message.from, *std::move(decoded));
      }
    }
    CheckEnds();
  } catch (const Error& error) {
    BreakDown(error.what());
  }
  NoteWhetherBusy();
  return event;
}

// Until the process exits, and then until every process is about to.
void Engine::Loop() {
  Pace pace;
  while (true) {
    bool event = false;
    if (std::unique_lock turn(turn_, std::try_to_lock); !turn) {
      if (IsStuck()) {
        std::fprintf(stderr, "apogee: rank %d ends with exit code %d: MPI does not return\n", rank_,
                     kExitCode);
        std::_Exit(kExitCode);
      }
    } else if (num_drivers_ == 0) {  // threads that wait do what there is to do themselves
      event = Round();
      if (MayLeave()) return;
    }
    pace.Rest(event, is_moving_, [this](auto nap) { Sleep(nap); });
  }
}

void Engine::NoteWhetherBusy() {
  bool busy = !flights_.empty();
  for (const uint32_t number : open_sessions_) {
    const Session& session = sessions_[number];
    busy = busy || !session.pending.empty() || session.on_end != nullptr ||
           session.failed_at != Clock::time_point{};
  }
  is_busy_ = busy;
  is_moving_ = !flights_.empty();
}

void Engine::Drive(Completion& completion, Clock::time_point until) {
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
    // Another thread may have the turn, and complete it.
    pace.Rest(event, is_moving_, [&](auto nap) { completion.WaitUntilDone(nap); });
  }
  --num_drivers_;
  if (is_busy_) Wake();
}

// Whether the process is exiting and has nothing more to say or to hear.
bool Engine::MayLeave() {
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
      // What a failed collective has left behind: nobody will ever send or take it.
      if (all_exiting_at_ == Clock::time_point{}) all_exiting_at_ = Clock::now();
      if (Clock::now() - all_exiting_at_ > kSilence) unclean_ = true;
    }
  } catch (const Error& error) {
    BreakDown(error.what());
  }
  return false;
}

bool Engine::RunCommands() {
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

void Engine::Sleep(std::chrono::microseconds nap) {
  std::unique_lock lock(mutex_);
  if (!is_busy_ && !stopping_) nap = kIdleNap;
  wake_.wait_for(lock, nap, [this] { return woken_ || !commands_.empty(); });
  woken_ = false;
}

void Engine::Wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  wake_.notify_one();
}

// Asks those that have been silent whether they are there; puts those that do not answer into
// `lost`.
bool Engine::AskSilent(uint32_t session, const std::set<int>& awaited, std::set<int>& lost) {
  const auto now = Clock::now();
  const bool ask = now - asked_ > kAskEvery;
  if (ask) asked_ = now;
  for (const int r : awaited) {
    if (ask) transport_->Post(r, Encode({.kind = MessageKind::kPing, .session = session}));
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

void Engine::Handle(int from, Message message) {
  if (message.kind == MessageKind::kExit) {
    exiting_.insert(from);
    return;
  }
  Session& session = sessions_[message.session];
  if (message.kind == MessageKind::kPing) {
    // A process that has not begun the session has been idle since the one before.
    const bool begun = session.record != nullptr;
    const auto idle = now_ - (begun ? session.record->active_at() : idle_since_);
    int64_t ms =
        std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(idle).count());
    if (begun && session.record->is_waiting()) ms = -1;
    return transport_->Post(
        from, Encode({.kind = MessageKind::kPong,
                      .session = message.session,
                      .tag = static_cast<int32_t>(std::min<int64_t>(ms, INT32_MAX))}));
  }
  if (session.ended) return;  // too late to matter
  switch (message.kind) {
    case MessageKind::kPong:
      session.active[from] = now_ - std::chrono::milliseconds(std::max(0, message.tag));
      if (message.tag < 0) session.waiting[from] = Clock::now();
      return;
    case MessageKind::kAwaited:
      session.awaited.insert(message.tag);
      return;
    case MessageKind::kCall:
      session.active[from] = now_;
      for (const OperationPtr& operation : session.pending) {
        if (operation->channel == message.channel && operation->sequence == message.sequence) {
          const OperationPtr kept = operation;
          return Arrive(kept, from, std::move(message));
        }
      }
      session.early[{message.channel, message.sequence}].emplace_back(from, std::move(message));
      return;
    case MessageKind::kFailed:
      return FailGroup(message.session, message.channel, message.sequence, message.text);
    case MessageKind::kLeft:
      return Left(message.session, from, {.ending = message.ending, .text = message.text});
    default:
      return;
  }
}

uint32_t Engine::Begin(std::shared_ptr<FlightRecord> record, std::chrono::milliseconds timeout) {
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
  });
  return number;
}

std::vector<RankEnding> Engine::End(uint32_t number, const RankEnding& own) {
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
      // Nothing on this stack may go while the thread could still come back to it.
      std::fprintf(stderr, "apogee: rank %d cannot end in order: MPI does not return%s%s\n", rank_,
                   own.text.empty() ? "" : "; this rank: ", own.text.c_str());
      std::_Exit(kExitCode);
    }
  }
  return endings;
}

void Engine::BreakDown(const std::string& error) {
  if (!broken_.empty()) return;
  broken_ = "MPI failed: " + error;
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

bool Engine::IsStuck() {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (rounds_ != rounds_seen_ || rounds_seen_at_ == Clock::time_point{}) {
    rounds_seen_ = rounds_;
    rounds_seen_at_ = now;
  }
  return now - rounds_seen_at_ > kSilence;
}

// Whether a process that is not lost may have yet to print what it knows.
bool Engine::OthersMayStillSpeak() {
  if (Clock::now() - stopped_at_ > kLastWords) return false;
  for (int r = 0; r < size_; ++r) {
    if (!exiting_.contains(r) && !lost_.contains(r)) return true;
  }
  return false;
}

void Engine::Leave() {
  if (!unclean_) return transport_->Finish();
  // One process aborts for all; several at once have crashed Open MPI's mpirun.
  int first = 0;
  while (lost_.contains(first)) ++first;
  if (first != rank_) std::this_thread::sleep_for(kAbortTimeout * 2 / 3);
  std::fprintf(stderr,
               "apogee: rank %d ends the job with exit code %d: a process is lost, and MPI cannot "
               "end in order without it\n",
               rank_, kExitCode);
  EndJob();
}

// Also where MPI_Abort does not return.
void Engine::EndJob() {
  RunWithin(kAbortTimeout, [this] { transport_->Abort(kExitCode); });
  std::_Exit(kExitCode);
}

}  // namespace apogee::comm::process
