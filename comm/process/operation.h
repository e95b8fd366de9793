// SPDX-License-Identifier: Apache-2.0

// Operation: one collective, seen from this process. It collects the members' calls and then runs
// the exchange of their data. Private to comm/process.
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

#include "apogee/comm/failure/flight_record.h"
#include "apogee/comm/fingerprint.h"
#include "apogee/comm/process/message.h"

namespace apogee::comm::process {

using Clock = std::chrono::steady_clock;

// The thread that made the call waits for this.
class Completion {
 public:
  // Only the first call has an effect. `error`: empty on success.
  void Finish(const std::string& error);
  bool IsDone();
  // Returns false on timeout. Throws CommError once there is an error.
  bool WaitFor(std::chrono::milliseconds timeout);
  // The same without throwing.
  bool WaitUntilDone(std::chrono::microseconds timeout);

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
  std::atomic<bool> done_{false};
  std::string error_;
};

// All fields but the completion belong to the thread that has the turn (CollectiveEngine).
struct Operation : std::enable_shared_from_this<Operation> {
  struct Member {
    bool arrived = false;
    Fingerprint fingerprint = {};
    int tag = 0;
    std::string data;  // its input if small, or the slice of it for this member
  };

  uint32_t session = 0;
  std::string group;  // its name: "[0 2]", "[0 2] copy 1"
  Channel channel;
  int64_t sequence = 0;
  std::vector<int> ranks;        // world ranks of the members: the whole group, or a pair
  std::vector<int> group_ranks;  // world ranks of the whole group
  size_t self = 0;               // this process' place in `ranks`
  std::vector<Member> members;   // by place
  CollectiveCall call = {};
  // For a call whose data does not go through the engine. `announced` is sent along with the
  // announcement. `start` starts the call once all members have announced it and agree; it gets the
  // first member's `announced`. It must not wait. An Error fails the operation; otherwise the
  // operation is complete. Null: the engine moves the data.
  std::string announced;
  std::function<void(const std::string& first)> start;
  std::shared_ptr<FlightRecord> record;
  uint64_t record_id = 0;
  // For messages: "barrier #0 of group [0 1]".
  std::string Name() const;

  bool exchanging = false;
  bool failed = false;
  // When data last moved.
  Clock::time_point last_progress = {};
  // When the members that are overdue were asked whether they themselves wait for another one.
  Clock::time_point asked_at = {};
  std::vector<int> in_flight;  // transfers, by peer
  int num_in_flight = 0;
  std::unique_ptr<TraceSpan> span;
  std::shared_ptr<void> exchange;  // memory of the transfers besides the tensors
  std::shared_ptr<Completion> completion = std::make_shared<Completion>();
};

// Starts the transfers of an exchange; `then` runs when a transfer is complete.
class Transfers {
 public:
  virtual ~Transfers() = default;
  // `peer`: a member's place in the operation.
  virtual void Send(Operation& operation, size_t peer, int tag, const void* data, int64_t bytes,
                    std::function<void()> then) = 0;
  virtual void Receive(Operation& operation, size_t peer, int tag, void* data, int64_t bytes,
                       std::function<void()> then) = 0;
  // The number of the machine that a world rank runs on: the same on all processes.
  virtual int MachineOf(int world_rank) const = 0;
};

// The bytes of this call that are sent to member `peer` with the announcement. std::nullopt if the
// data is too large for that. All members get the same answer, because fingerprints are equal.
std::optional<std::string> SmallData(const CollectiveCall& call, size_t self, size_t peer,
                                     size_t size);
// Completes a call of small data, after the data of all members has arrived.
void FinishSmall(const Operation& operation);
// Starts the exchange of large data. The exchange runs until the last transfer's `then` has run.
void StartExchange(Operation& operation, Transfers& transfers);

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_OPERATION_H_
