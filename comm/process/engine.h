// SPDX-License-Identifier: Apache-2.0

// Engine: the progress of a process' collectives. One per process; private to comm/process.
//
// One thread at a time calls the transport (MPI, TCP) and touches the state of the engine: the one
// whose turn it is. A thread that waits for a collective takes turns itself, so that nothing has to
// be handed over; a thread of the engine's own does what there is to do while nobody waits. Calls,
// time-outs and ends that come when it is another's turn are commands, and what is found out goes
// back through completions. Threads with nothing to do sleep, in steps that grow up to a
// millisecond, because ranks share cores.
//
// A call is announced to the other members with its fingerprint. When all have announced the same,
// and not before, data moves, under tags that each receiver has chosen; small data goes along with
// the announcement. So no member waits inside of it, groups need no communicators, and calls of
// different groups may come in any order.
//
// A launch is a session. Its end is an agreement: every process has told all others how its
// function ended, or has been given up: it was silent for kSilence although it was asked, or
// did not come to its end after another failed (GiveUpAt). Then the job cannot end in order and is
// aborted with kExitCode when this process exits.
#ifndef APOGEE_COMM_PROCESS_ENGINE_H_
#define APOGEE_COMM_PROCESS_ENGINE_H_

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

// A process that says nothing for so long, asked several times, is taken for lost.
inline constexpr std::chrono::duration<double> kSilence(5);

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
  // "MPI", "TCP"; for messages.
  std::string TransportName() const { return std::string(transport_->name()); }
  // Bytes of tensors that this process has sent to processes on other machines.
  int64_t bytes_to_other_machines() const { return transport_->bytes_to_other_machines(); }

  // Every process begins the same sessions. `record`: of this process.
  uint32_t Begin(std::shared_ptr<FlightRecord> record, std::chrono::milliseconds timeout);
  // What to call when the data of a group that does not go through the engine is lost (Operation's
  // start): in the thread whose turn it is, with the group's hash. Until the session ends.
  using OnDeviceFailure = std::function<void(uint64_t group, const std::string& why)>;
  void SetOnDeviceFailure(uint32_t session, OnDeviceFailure on_failure);
  // It is lost: fails the group here and on its members `ranks`.
  void FailOnDevice(uint32_t session, const Channel& channel, const std::vector<int>& ranks,
                    const std::string& why);
  // Starts an operation, of which session, group, channel, sequence, ranks, self, call and record
  // are filled in.
  void Call(std::shared_ptr<Operation> operation);
  // The operation's caller has waited for `timeout`: fails it unless its data is moving. To be
  // called again soon while it is not done.
  void TimeOut(std::shared_ptr<Operation> operation, std::chrono::milliseconds timeout);
  // Takes turns until the completion is done, or the time has come. Does not throw.
  void Drive(Completion& completion, Clock::time_point until);
  // Whether nobody has come out of the transport for kSilence; ask more than once.
  bool IsStuck();
  // Tells everybody how this process' function ended and returns how everybody's did. Waits for
  // those that still run as long as they answer, but once one has failed no longer than GiveUpAt.
  std::vector<RankEnding> End(uint32_t session, const RankEnding& own);

 private:
  using OperationPtr = std::shared_ptr<Operation>;
  struct Session {
    std::shared_ptr<FlightRecord> record;  // null until this process has begun it
    std::chrono::milliseconds timeout = {};
    std::vector<OperationPtr> pending;
    // Calls that came before this process': (world rank, call).
    std::map<std::pair<Channel, int64_t>, std::vector<std::pair<int, Message>>> early;
    std::map<uint64_t, std::string> failed_groups;  // by hash -> the first error
    std::map<int, RankEnding> endings;              // of those that have told
    std::set<int> awaited;                          // that some collective has waited for
    std::map<int, Clock::time_point> active;        // when others last called something
    std::map<int, Clock::time_point> waiting;       // when others last said that they wait
    std::function<void()> on_end;                   // set once this process has told
    OnDeviceFailure on_device_failure = {};
    Clock::time_point failed_at = {};  // set once one has failed
    bool ended = false;
  };
  struct Flight {
    OperationPtr operation;
    size_t peer;
    std::function<void()> then;
  };

  Engine();
  void Command(std::function<void()> command);

  // The engine's own thread.
  void Run();
  void Loop();
  void Sleep(std::chrono::microseconds nap);
  void Wake();
  void Leave();

  // Of the thread whose turn it is.
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
  // Runs fn, which moves data of the operation; an Error fails it.
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
  Clock::time_point now_ = {};  // of the round
  std::map<uint32_t, Session> sessions_;
  std::set<uint32_t> open_sessions_;  // that this process has begun and that have not ended
  std::unordered_map<uint64_t, Flight> flights_;
  uint64_t next_id_ = 1;
  int next_tag_ = 1;
  std::vector<Clock::time_point> heard_;  // when each process last said something
  Clock::time_point asked_ = {};          // when the silent ones were last asked
  Clock::time_point idle_since_ = {};     // when this process' last session ended
  std::set<int> exiting_;                 // processes that are about to end
  std::set<int> lost_;                    // that were given up
  std::vector<Transport::Gone> gone_;     // that the transport has lost
  Clock::time_point stopped_at_ = {};     // when this process began to exit
  Clock::time_point all_exiting_at_ = {};
  bool unclean_ = false;   // a process is lost, or the transport failed: it cannot finish
  bool given_up_ = false;  // by another process
  std::string broken_;     // the transport's error

  // Everybody's.
  int rank_ = 0, size_ = 1;
  pid_t process_;
  std::atomic<uint64_t> rounds_{0};
  std::atomic<int> num_drivers_{0};
  std::atomic<bool> is_busy_{false};    // something is under way
  std::atomic<bool> is_moving_{false};  // data is
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

#endif  // APOGEE_COMM_PROCESS_ENGINE_H_
