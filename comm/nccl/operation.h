// SPDX-License-Identifier: Apache-2.0

// Call: a request to a communicator. Operation: the running request.
//
//   const OperationPtr sum = communicator->Submit(
//       {.kind = CollectiveKind::kAllReduce, .dtype = DType::kF32, .count = 1024,
//        .input = grad, .output = grad, .stream = stream, .is_complete = done});
//   sum->Wait();                                 // throws CommError
//
// Private to comm.
#ifndef APOGEE_COMM_NCCL_OPERATION_H_
#define APOGEE_COMM_NCCL_OPERATION_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apogee/comm/failure/flight_record.h"
#include "apogee/comm/nccl/abi.h"
#include "apogee/comm/work.h"

namespace apogee::comm::nccl {

using Clock = std::chrono::steady_clock;

// Memory that a member sends to or receives from another; `count` elements of the call's dtype.
struct Piece {
  int peer = 0;
  void* data = nullptr;
  int64_t count = 0;
};

// One member's call on memory of its device. Counts, dtypes and roots must be equal on all members.
struct Call {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  // Root of broadcast and reduce, peer of send and recv: a rank of the group.
  int root = 0;
  DType dtype = DType::kF32;
  // Number of elements of the input; for broadcast and recv, of the output.
  int64_t count = 0;
  // The same rules as in Group say which of the two are used and which may be the same memory.
  // Exceptions: broadcast is in place on `output`, and reduce writes `output` on the root only.
  const void* input = nullptr;
  void* output = nullptr;
  // If not empty, these pieces are all that moves, at once, and the fields above are only for
  // messages. A member must send its pieces to another in the order in which it receives them.
  std::vector<Piece> sends = {}, receives = {};
  Stream stream = nullptr;
  // Called on the communicator's thread right before and right after NCCL queues the call on the
  // stream. They queue the work that must run in front of it and behind it. May be empty.
  std::function<void()> before = {}, after = {};
  // Whether the device has completed the operation. Called only on the communicator's thread: first
  // when NCCL has queued the operation on the stream, so that it can record an event there, then
  // again until it returns true. Must own what it uses. An exception fails the communicator.
  std::function<bool()> is_complete = {};
};

inline bool IsExchange(const Call& call) { return !call.sends.empty() || !call.receives.empty(); }

class Operation : public Work {
 public:
  Operation(Call call, std::string name, Clock::time_point deadline,
            std::shared_ptr<FlightRecord> record, uint64_t record_id);

  // Returns when the device has completed the operation. Throws CommError.
  void Wait() override;
  bool IsDone() override;
  // Returns when NCCL has queued the operation on the stream and is_complete was called once. From
  // then on streams can be made to wait for it. Throws CommError.
  void WaitQueued();
  // Whether WaitQueued would return at once.
  bool IsQueued();

  const Call& call() const { return call_; }
  // "all_reduce(sum, 1024 x f32) #3 of group [0 1]".
  const std::string& name() const { return name_; }
  Clock::time_point deadline() const { return deadline_; }

  // For CommunicatorThreads. `error`: empty on success. SetRecord comes before Finish, so that the
  // flight record is written before the caller goes on.
  void SetQueued();
  void SetRecord(const std::string& error);
  void Finish(const std::string& error);

 private:
  const Call call_;
  const std::string name_;
  const Clock::time_point deadline_;
  const std::shared_ptr<FlightRecord> record_;
  const uint64_t record_id_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool queued_ = false, recorded_ = false, done_ = false;
  std::string error_;
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_OPERATION_H_
