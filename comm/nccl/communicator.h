// SPDX-License-Identifier: Apache-2.0

// Communicator: one rank's part of an NCCL communicator. Every wait in it has a time limit.
//
//   Communicator communicator({.api = api, .id = id, .rank = 0, .world_ranks = {0, 1},
//                              .timeout = std::chrono::seconds(60), .record = record});
//   const OperationPtr operation = communicator.Submit({.kind = CollectiveKind::kAllReduce, ...});
//   operation->Wait();                                          // throws CommError
//
// Every member makes one from the same id, and submits the same operations in the same order, from
// one thread at a time. The caller's threads never call NCCL.
//
// The communicator fails for good if an operation is not complete within the timeout, or if NCCL
// reports an error. Then all its operations throw a CommError that names operation, number and
// group; the flight record is written; tell_peers is called; and ncclCommAbort is tried in a thread
// of its own.
//
// The destructor waits for running operations. If the communicator has failed and one of its
// threads is still inside NCCL after kGrace, the destructor ends the process with kExitCode
// (comm/failure/give_up.h), because such a thread cannot be ended. Private to comm; knows nothing
// of CUDA.
#ifndef APOGEE_COMM_NCCL_COMMUNICATOR_H_
#define APOGEE_COMM_NCCL_COMMUNICATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "apogee/comm/nccl/operation.h"
#include "apogee/comm/nccl/options.h"

namespace apogee::comm::nccl {

class CommunicatorThreads;

class Communicator {
 public:
  // Waits for the other members; without options.wait, the first operations wait for them instead.
  // Throws Error for invalid options, and CommError if NCCL fails or a member does not arrive
  // within the timeout.
  explicit Communicator(CommunicatorOptions options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(group_->ranks.size()); }

  // Returns at once. The operation may be dropped: it runs, but its error is not seen. Throws Error
  // for an invalid call, and CommError if the communicator has failed before.
  OperationPtr Submit(Call call);
  // Fails the communicator for a reason that the peers already know. Returns at once. Any thread.
  void Abort(const std::string& why);
  // How often the thread that calls NCCL has slept because NCCL was still in progress with a call.
  // It sleeps only for calls that take longer than a few ten microseconds.
  int64_t num_sleeps() const;

 private:
  void Check(const Call& call) const;

  int rank_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<FlightRecord> record_;
  std::shared_ptr<const FlightGroup> group_;
  std::map<std::pair<int, int>, int64_t> num_calls_;  // by sender and receiver; group: {-1, -1}
  std::unique_ptr<CommunicatorThreads> threads_;
};

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_COMMUNICATOR_H_
