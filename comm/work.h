// SPDX-License-Identifier: Apache-2.0

// Work: a collective that has been started, and the operations of collectives.
//
//   std::shared_ptr<Work> work = group.AllReduceAsync(grad, ReduceOp::kSum);
//   ... compute ...
//   work->Wait();                    // blocks (never spins) until grad holds the sum
//
// A Work keeps its tensors alive. It may be dropped without Wait: the collective still runs, but
// its error, if any, is not seen. If a GPU's tensor is staged through the host, dropping the Work
// blocks until the collective has ended.
#ifndef APOGEE_COMM_WORK_H_
#define APOGEE_COMM_WORK_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "apogee/core/error.h"

namespace apogee::comm {

// What a reduce, all-reduce or reduce-scatter does with the ranks' elements.
enum class ReduceOp : uint8_t { kSum, kMax };

// A collective that failed. The message names the rank at fault, the operation and its sequence
// number. The contents of its tensors are undefined.
class CommError : public Error {
 public:
  using Error::Error;
};

class Work {
 public:
  virtual ~Work() = default;
  // Returns once this rank's part is complete and its tensors may be used. Over NCCL, tensors of a
  // GPU may be used by work that is queued from now on (comm/group.h). Throws CommError if a peer
  // failed, left, called another operation, or did not arrive within the group's timeout.
  virtual void Wait() = 0;
  // Whether Wait would return at once.
  virtual bool IsDone() = 0;
  // Waits as Wait does, but at most about so long. Returns whether the collective is complete.
  virtual bool WaitFor(std::chrono::milliseconds limit);
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_WORK_H_
