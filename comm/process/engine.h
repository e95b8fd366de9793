// Engine: the progress of a process' collectives. One per process; private to comm/process.
//
// One thread per process calls MPI, and only it touches the state below the line: calls, time-outs
// and ends come to it as commands, and what it finds out goes back through completions. It sleeps
// while there is nothing to do, in steps that grow up to a millisecond, because ranks share cores.
//
// A call is announced to the other members with its fingerprint. When all have announced the same,
// and not before, data moves, under tags that each receiver has chosen; small data goes along with
// the announcement. So no member waits inside of MPI, groups need no communicators, and calls of
// different groups may come in any order.
//
// A launch is a session. Its end is an agreement: every process has told all others how its
// function ended, or has been silent for kSilenceSeconds although it was asked; then the job cannot
// end in order and is aborted with kExitCode when this process exits.
#ifndef APOGEE_COMM_PROCESS_ENGINE_H_
#define APOGEE_COMM_PROCESS_ENGINE_H_

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <unordered_map>

#include "apogee/comm/mpi/transport.h"
#include "apogee/comm/process/operation.h"

namespace apogee::comm::process {

// Of a job that cannot end in order (docs/launch.md).
inline constexpr int kExitCode = 70;
// A process that says nothing for so long, asked several times, is taken for lost.
inline constexpr double kSilenceSeconds = 5;

// How a process' function ended.
struct RankEnding {
  Ending ending = Ending::kReturned;
  std::string text = {};
  bool lost = false;
};

class Engine : private Transfers {
 public:
  // The engine of this process, started by the first call.
  static absl::StatusOr<Engine*> OfProcess();
  ~Engine() override;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Every process begins the same sessions.
  uint32_t Begin();
  // Starts an operation, of which session, group, channel, ranks, self and call are filled in.
  void Call(std::shared_ptr<Operation> operation);
  // The operation's caller has waited for `timeout`: fails it unless its data is moving.
  void TimeOut(std::shared_ptr<Operation> operation, std::chrono::milliseconds timeout);
  // Whether the progress thread has not come out of MPI for kSilenceSeconds; ask more than once.
  bool IsStuck();
  // Tells everybody how this process' function ended and returns how everybody's did. Waits for
  // those that still run as long as they answer, but once one has failed no longer than `timeout`
  // and kSilenceSeconds.
  std::vector<RankEnding> End(uint32_t session, const RankEnding& own,
                              std::chrono::milliseconds timeout);

 private:
  using OperationPtr = std::shared_ptr<Operation>;
  struct Session {
    std::map<Channel, int64_t> next;  // sequence numbers
    std::vector<OperationPtr> pending;
    // Calls that came before this process': (world rank, call).
    std::map<std::pair<Channel, int64_t>, std::vector<std::pair<int, Message>>> early;
    std::map<uint64_t, std::string> failed_groups;  // by hash -> the first error
    std::map<int, RankEnding> endings;              // of those that have told
    std::chrono::milliseconds timeout = {};
    std::function<void()> on_end;     // set once this process has told
    Clock::time_point deadline = {};  // set once one has failed
    bool ended = false;
  };
  struct Flight {
    OperationPtr operation;
    size_t peer;
    std::function<void()> then;
  };

  Engine();
  void Command(std::function<void()> command);

  // The progress thread's.
  void Run();
  void Loop();
  bool RunCommands();
  void Sleep();
  void Leave();
  void CheckEnds();
  bool AskSilent(const std::set<int>& awaited, std::set<int>& lost);
  void PostToAll(const Message& message);
  void Handle(int from, const Message& message);
  void Left(uint32_t session, int rank, const RankEnding& ending);
  void BreakDown(const std::string& error);

  void Announce(const OperationPtr& operation);
  void Arrive(const OperationPtr& operation, int from, const Message& message);
  void Execute(const OperationPtr& operation);
  // Runs fn, which moves data of the operation; an Error fails it.
  void Move(const OperationPtr& operation, const std::function<void()>& fn);
  void Finish(const OperationPtr& operation, const std::string& error);
  void Fail(const OperationPtr& operation, const std::string& message);
  void FailGroup(uint32_t session, const Channel& channel, int64_t sequence,
                 const std::string& message);
  void TimedOut(const OperationPtr& operation, std::chrono::milliseconds timeout);
  void Send(Operation& operation, size_t peer, int tag, const void* data, int64_t bytes,
            std::function<void()> then) override;
  void Receive(Operation& operation, size_t peer, int tag, void* data, int64_t bytes,
               std::function<void()> then) override;
  uint64_t AddFlight(Operation& operation, size_t peer, std::function<void()> then);
  void Land(uint64_t id);
  static void Drop(Operation& operation);

  std::unique_ptr<mpi::Transport> transport_;
  std::map<uint32_t, Session> sessions_;
  std::unordered_map<uint64_t, Flight> flights_;
  uint64_t next_id_ = 1;
  int next_tag_ = 1;
  std::vector<Clock::time_point> heard_;  // when each process last said something
  Clock::time_point asked_ = {};          // when the silent ones were last asked
  std::set<int> exiting_;                 // processes that are about to end
  bool unclean_ = false;                  // a process is lost, or MPI failed: no MPI_Finalize
  std::string broken_;                    // MPI's error
  Clock::time_point last_event_ = {};
  std::chrono::microseconds nap_{};

  // Everybody's.
  int rank_ = 0, size_ = 1;
  pid_t process_;
  std::atomic<uint64_t> rounds_{0};  // of the progress thread
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> commands_;
  uint32_t next_session_ = 0;
  bool stopping_ = false;
  std::optional<absl::Status> started_;
  bool finished_ = false;
  std::condition_variable progress_;
  uint64_t rounds_seen_ = 0;
  Clock::time_point rounds_seen_at_ = {};
  std::thread thread_;
};

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_ENGINE_H_
