// SPDX-License-Identifier: Apache-2.0

// CollectiveEngine: carries out the collectives of a process. One per process; private to
// comm/process.
//
// One thread at a time has the turn: it calls the transport (MPI, TCP) and touches the engine's
// state. A thread that waits for a collective takes turns itself, so no work has to be handed over.
// The engine's own thread takes turns while no other thread waits. If another thread has the turn,
// calls, timeouts and ends are queued as commands, and results come back through completions.
// Threads with nothing to do sleep, in steps that grow to a millisecond, because ranks share cores.
//
// A call is announced to the other members with its fingerprint. Data moves only after all members
// have announced the same call, under tags that each receiver has chosen; small data is part of the
// announcement. So no member blocks inside the transport, groups need no communicators, and calls
// of different groups may come in any order.
//
// A launch is a session. It ends when every process has told all others how its function ended, or
// has been given up. A process is given up if it was silent for kSilence although it was asked, or
// if its function did not end after another one failed (GiveUpAt). Then the job cannot end in
// order: it is aborted with kExitCode when this process exits.
#ifndef APOGEE_COMM_PROCESS_COLLECTIVE_ENGINE_H_
#define APOGEE_COMM_PROCESS_COLLECTIVE_ENGINE_H_

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <unordered_map>

#include "apogee/comm/process/operation.h"
#include "apogee/comm/transport/transport.h"

namespace apogee::comm::process {

// A process that has been silent for this long, although asked several times, counts as lost.
inline constexpr std::chrono::duration<double> kSilence(5);

// How a process' function ended.
struct RankEnding {
  Ending ending = Ending::kReturned;
  std::string text = {};
  bool lost = false;
};

class CollectiveEngine : private Transfers {
 public:
  // The engine of this process, started by the first call.
  static absl::StatusOr<CollectiveEngine*> OfProcess();
  ~CollectiveEngine() override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // For messages: "MPI" or "TCP".
  std::string TransportName() const { return std::string(transport_->name()); }
  // Bytes of tensors that this process has sent to processes on other machines.
  int64_t bytes_to_other_machines() const { return transport_->bytes_to_other_machines(); }

  // Begins a session. Every process begins the same sessions. `record`: that of this process.
  uint32_t Begin(std::shared_ptr<FlightRecord> record, std::chrono::milliseconds timeout);
  // Called when a group whose data does not go through the engine (Operation::start) has lost data:
  // with the group's hash, on the thread that has the turn. Valid until the session ends.
  using OnDeviceFailure = std::function<void(uint64_t group, const std::string& why)>;
  void SetOnDeviceFailure(uint32_t session, OnDeviceFailure on_failure);
  // Reports such a loss: fails the group here and on its members `ranks`.
  void FailOnDevice(uint32_t session, const Channel& channel, const std::vector<int>& ranks,
                    const std::string& why);
  // Starts an operation. The caller must have set session, group, channel, sequence, ranks, self,
  // call and record.
  void Call(std::shared_ptr<Operation> operation);
  // Call it when the operation's caller has waited for `timeout`, and again soon while the
  // operation is not done. Fails the operation unless its data is moving.
  void TimeOut(std::shared_ptr<Operation> operation, std::chrono::milliseconds timeout);
  // Takes turns until the completion is done or the time is over. Does not throw.
  void Drive(Completion& completion, Clock::time_point until);
  // Whether a thread has been inside the transport for kSilence. Ask more than once.
  bool IsStuck();
  // Tells all processes how this process' function ended, and returns how the functions of all
  // ended. Waits for running functions as long as their processes answer; once a function has
  // failed, only until GiveUpAt.
  std::vector<RankEnding> End(uint32_t session, const RankEnding& own);

 private:
  using OperationPtr = std::shared_ptr<Operation>;
  struct Session {
    std::shared_ptr<FlightRecord> record;  // null until this process has begun it
    std::chrono::milliseconds timeout = {};
    std::vector<OperationPtr> pending;
    // Calls that arrived before this process made its own: (world rank, call).
    std::map<std::pair<Channel, int64_t>, std::vector<std::pair<int, Message>>> early;
    std::map<uint64_t, std::string> failed_groups;  // by hash -> the first error
    std::map<int, RankEnding> endings;              // of the ranks that have reported it
    std::set<int> awaited;                          // ranks that a collective has timed out on
    std::map<int, Clock::time_point> active;        // when other ranks last called a collective
    std::map<int, Clock::time_point> waiting;       // when other ranks last said that they wait
    std::function<void()> on_end;                   // set once this process has reported its end
    OnDeviceFailure on_device_failure = {};
    Clock::time_point failed_at = {};  // set once a rank has failed
    bool ended = false;
  };
  struct Flight {
    OperationPtr operation;
    size_t peer;
    std::function<void()> then;
  };

  CollectiveEngine();
  void Command(std::function<void()> command);

  // On the engine's own thread:
  void Run();
  void Loop();
  void Sleep(std::chrono::microseconds nap);
  void Wake();
  void Leave();

  // On the thread that has the turn:
  bool Round();
  bool RunCommands();
  bool MayLeave();
  void NoteWhetherBusy();
  void CheckEnds();
  void CheckEnd(uint32_t number, Session& session);
  Clock::time_point GiveUpRankAt(const Session& session, int rank) const;
  void GivenUp(uint32_t number, int by, const std::string& why);
  [[noreturn]] void GiveUpOnItself(const Session& session);
  [[noreturn]] void EndJob();
  bool AskSilent(uint32_t session, const std::set<int>& awaited, std::set<int>& lost);
  bool OthersMayStillSpeak();
  void PostToAll(const Message& message);
  void Handle(int from, Message message);
  void Left(uint32_t session, int rank, const RankEnding& ending);
  void HasGone(const Transport::Gone& gone);
  void BreakDown(const std::string& error);

  void Announce(const OperationPtr& operation);
  void Arrive(const OperationPtr& operation, int from, Message message);
  void Execute(const OperationPtr& operation);
  // Runs fn, which moves data of the operation. An Error from fn fails the operation.
  void Move(const OperationPtr& operation, const std::function<void()>& fn);
  void Finish(const OperationPtr& operation, const std::string& error);
  void Fail(const OperationPtr& operation, const std::string& message);
  std::vector<int> Culprits(const Operation& operation, const std::vector<int>& suspects) const;
  void FailGroup(uint32_t session, const Channel& channel, int64_t sequence,
                 const std::string& message);
  void TimedOut(const OperationPtr& operation, std::chrono::milliseconds timeout);
  void Send(Operation& operation, size_t peer, int tag, const void* data, int64_t bytes,
            std::function<void()> then) override;
  void Receive(Operation& operation, size_t peer, int tag, void* data, int64_t bytes,
               std::function<void()> then) override;
  int MachineOf(int world_rank) const override { return transport_->machine_of(world_rank); }
  uint64_t AddFlight(Operation& operation, size_t peer, std::function<void()> then);
  void Land(uint64_t id);
  static void Drop(Operation& operation);

  std::mutex turn_;
  std::unique_ptr<Transport> transport_;
  Transport::Events events_;
  Clock::time_point now_ = {};  // at the start of the round
  std::map<uint32_t, Session> sessions_;
  std::set<uint32_t> open_sessions_;  // begun by this process and not ended
  std::unordered_map<uint64_t, Flight> flights_;
  uint64_t next_id_ = 1;
  int next_tag_ = 1;
  std::vector<Clock::time_point> heard_;  // when each process last sent something
  Clock::time_point asked_ = {};          // when the silent processes were last asked
  Clock::time_point idle_since_ = {};     // when this process' last session ended
  std::set<int> exiting_;                 // processes that are about to end
  std::set<int> lost_;                    // processes that were given up
  std::vector<Transport::Gone> gone_;     // processes that the transport has lost
  Clock::time_point stopped_at_ = {};     // when this process began to exit
  Clock::time_point all_exiting_at_ = {};
  bool unclean_ = false;   // a process is lost or the transport failed: cannot finish in order
  bool given_up_ = false;  // another process has given up this one
  std::string broken_;     // the transport's error

  // For all threads:
  int rank_ = 0, size_ = 1;
  pid_t process_;
  std::atomic<uint64_t> rounds_{0};
  std::atomic<int> num_drivers_{0};
  std::atomic<bool> is_busy_{false};    // an operation is running
  std::atomic<bool> is_moving_{false};  // data is moving
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> commands_;
  std::atomic<bool> has_commands_{false};
  uint32_t next_session_ = 0;
  bool stopping_ = false;
  bool woken_ = false;
  std::optional<absl::Status> started_;
  bool finished_ = false;
  std::condition_variable progress_;
  uint64_t rounds_seen_ = 0;
  Clock::time_point rounds_seen_at_ = {};
  std::thread thread_;
};

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_COLLECTIVE_ENGINE_H_
