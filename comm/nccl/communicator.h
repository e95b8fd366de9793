// SPDX-License-Identifier: Apache-2.0

// Communicator: one rank's part of an NCCL communicator, whose every wait has an end.
//
//   Communicator communicator({.api = api, .id = id, .rank = 0, .world_ranks = {0, 1},
//                              .timeout = std::chrono::seconds(60), .record = record});
//   const OperationPtr operation = communicator.Submit({.kind = CollectiveKind::kAllReduce, ...});
//   operation->Wait();                                          // throws CommError
//
// Every member makes one, from the same id, and submits the same operations in the same order, from
// one thread at a time. No thread of the caller is ever inside of NCCL. An operation that is not
// complete within the timeout, and an error that NCCL reports, fail the communicator for good: all
// its operations throw CommError that names operation, number and group, the flight record is
// written, tell_peers is called, and ncclCommAbort is tried where nothing waits for it.
//
// The destructor waits for what is under way. Where the communicator has failed and NCCL does not
// let go of a thread within kGrace, it ends the process with kExitCode (comm/give_up.h), for NCCL's
// threads cannot be ended; else the process goes on. Private to comm; knows nothing of CUDA.
#ifndef APOGEE_COMM_NCCL_COMMUNICATOR_H_
#define APOGEE_COMM_NCCL_COMMUNICATOR_H_

#include <map>
#include <memory>
#include <utility>

#include "apogee/comm/nccl/operation.h"
#include "apogee/comm/nccl/options.h"

namespace apogee::comm::nccl {

class Engine;

class Communicator {
 public:
  // Waits for the other members, or, without options.wait, lets operations wait for them. Error:
  // options that cannot be. CommError: NCCL fails, or a member does not come within the timeout.
  explicit Communicator(CommunicatorOptions options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(group_->ranks.size()); }

  // Returns at once. Dropping the operation is allowed: it runs, but its error is not seen. Error:
  // a call that cannot be. CommError: the communicator has failed before.
  OperationPtr Submit(Call call);
  // Fails it for a reason that the peers know, too. Returns at once. Any thread.
  void Abort(const std::string& why);

 private:
  void Check(const Call& call) const;

  int rank_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<FlightRecord> record_;
  std::shared_ptr<const FlightGroup> group_;
  std::map<std::pair<int, int>, int64_t> num_calls_;  // by sender and receiver, else -1, -1
  std::unique_ptr<Engine> engine_;
};

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_COMMUNICATOR_H_
