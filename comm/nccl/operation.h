// SPDX-License-Identifier: Apache-2.0

// What a communicator is asked to do, and the operation that comes of it.
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

#include "apogee/comm/flight_record.h"
#include "apogee/comm/nccl/abi.h"
#include "apogee/comm/work.h"

namespace apogee::comm::nccl {

using Clock = std::chrono::steady_clock;

// What a member sends to another, or receives from it; elements of the call's dtype.
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
  // Elements of the input; of broadcast and recv, of the output.
  int64_t count = 0;
  // Which of the two are used, and what may be the same memory, is as in Group: broadcast is in
  // place on `output`; reduce writes `output` on the root only.
  const void* input = nullptr;
  void* output = nullptr;
  // Where there are any, they are all that moves, at once; the fields above are for messages. What
  // one member sends to another is in the order in which the other receives it.
  std::vector<Piece> sends = {}, receives = {};
  Stream stream = nullptr;
  // Called right before NCCL queues it on the stream and right after it has, for what has to stand
  // there in front of it and behind it, in the communicator's thread. May be empty.
  std::function<void()> before = {}, after = {};
  // Whether the device has come past the operation. First called when NCCL has queued it on the
  // stream, so that it can record an event there, then until it is true; always on the
  // communicator's thread. Must own what it uses; an exception fails the communicator.
  std::function<bool()> is_complete = {};
};

inline bool IsExchange(const Call& call) { return !call.sends.empty() || !call.receives.empty(); }

class Operation : public Work {
 public:
  Operation(Call call, std::string name, Clock::time_point deadline,
            std::shared_ptr<FlightRecord> record, uint64_t record_id);

  // Returns when the device has come past it. Throws CommError.
  void Wait() override;
  bool IsDone() override;
  // Returns when NCCL has queued it on the stream and is_complete was called once: streams can be
  // made to wait for it. Throws CommError.
  void WaitQueued();
  // Whether WaitQueued would not block.
  bool IsQueued();

  const Call& call() const { return call_; }
  // "all_reduce(sum, 1024 x f32) #3 of group [0 1]".
  const std::string& name() const { return name_; }
  Clock::time_point deadline() const { return deadline_; }

  // For the engine. `error`: empty where all went well. The flight record, which is written before
  // the caller goes on, gets to know first.
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
