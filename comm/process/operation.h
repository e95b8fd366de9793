// SPDX-License-Identifier: Apache-2.0

// One collective, seen from this process: the members' calls as they arrive, then the exchange of
// their data. Private to comm/process.
#ifndef APOGEE_COMM_PROCESS_OPERATION_H_
#define APOGEE_COMM_PROCESS_OPERATION_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apogee/comm/fingerprint.h"
#include "apogee/comm/flight_record.h"
#include "apogee/comm/process/message.h"

namespace apogee::comm::process {

using Clock = std::chrono::steady_clock;

// What the thread that called waits for.
class Completion {
 public:
  // The first call counts. `error`: empty where all went well.
  void Finish(const std::string& error);
  bool IsDone();
  // False on timeout. Throws CommError once there is an error.
  bool WaitFor(std::chrono::milliseconds timeout);
  // The same without throwing.
  bool WaitUntilDone(std::chrono::microseconds timeout);

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
  std::atomic<bool> done_{false};
  std::string error_;
};

// Everything but the completion belongs to the thread whose turn it is (Engine).
struct Operation : std::enable_shared_from_this<Operation> {
  struct Member {
    bool arrived = false;
    Fingerprint fingerprint = {};
    int tag = 0;
    std::string data;  // its input, or this member's slice of it, where it is small
  };

  uint32_t session = 0;
  std::string group;  // its name: "[0 2]", "[0 2] copy 1"
  Channel channel;
  int64_t sequence = 0;
  std::vector<int> ranks;        // of the members, in the world: of the group, or of a pair
  std::vector<int> group_ranks;  // of the whole group
  size_t self = 0;               // this process' place among them
  std::vector<Member> members;   // by place
  CollectiveCall call = {};
  // Of a call whose data does not go through the engine: what goes along with the announcement, and
  // what starts it, given what came along with the first member's, once all members have come and
  // agree. Must not wait; an Error fails the operation, which else is complete. Null: the engine
  // moves the data.
  std::string announced;
  std::function<void(const std::string& first)> start;
  std::shared_ptr<FlightRecord> record;
  uint64_t record_id = 0;
  // "barrier #0 of group [0 1]", for messages.
  std::string Name() const;

  bool exchanging = false;
  bool failed = false;
  // Since when nothing has moved.
  Clock::time_point last_progress = {};
  // When those that are waited for longer than the timeout were asked whether they wait elsewhere.
  Clock::time_point asked_at = {};
  std::vector<int> in_flight;  // transfers, by peer
  int num_in_flight = 0;
  std::unique_ptr<TraceSpan> span;
  std::shared_ptr<void> exchange;  // what the transfers read and write beside the tensors
  std::shared_ptr<Completion> completion = std::make_shared<Completion>();
};

// Starts transfers of an exchange; `then` runs when one is complete.
class Transfers {
 public:
  virtual ~Transfers() = default;
  // `peer`: a member, by its place in the operation.
  virtual void Send(Operation& operation, size_t peer, int tag, const void* data, int64_t bytes,
                    std::function<void()> then) = 0;
  virtual void Receive(Operation& operation, size_t peer, int tag, void* data, int64_t bytes,
                       std::function<void()> then) = 0;
  // The number of the machine on which a world rank runs: the same on all processes.
  virtual int MachineOf(int world_rank) const = 0;
};

// The bytes of this call that member `peer` gets along with the announcement. Nothing where they
// are too many for that; all members decide alike, by what the fingerprints say.
std::optional<std::string> SmallData(const CollectiveCall& call, size_t self, size_t peer,
                                     size_t size);
// Completes a call whose members have sent small data, all of which is there.
void FinishSmall(const Operation& operation);
// Starts the exchange of large data, and runs until the last transfer's `then` has run.
void StartExchange(Operation& operation, Transfers& transfers);

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_OPERATION_H_
