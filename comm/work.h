// SPDX-License-Identifier: Apache-2.0

// Work: a collective under way.
//
//   std::shared_ptr<Work> work = group.AllReduceAsync(grad, ReduceOp::kSum);
//   ... compute ...
//   work->Wait();                    // blocks (never spins) until grad holds the sum; throws
//   CommError
//
// A Work keeps the tensors it was given alive. Dropping it without Wait is allowed: the collective
// still runs, but its error, if any, is not seen; that of a GPU's tensor that is staged through the
// host is waited for.
#ifndef APOGEE_COMM_WORK_H_
#define APOGEE_COMM_WORK_H_

#include <string>

#include "apogee/core/error.h"

namespace apogee::comm {

// A collective that did not happen: the message names the rank at fault, the operation and its
// sequence number. The contents of the tensors it was given are undefined.
class CommError : public Error {
 public:
  using Error::Error;
};

class Work {
 public:
  virtual ~Work() = default;
  // Returns once this rank's part is complete and its tensors may be used; of tensors of a GPU over
  // NCCL, by what is queued from now on (comm/group.h). Throws CommError when a peer failed, left,
  // called something else, or did not arrive within the group's timeout.
  virtual void Wait() = 0;
  // True once Wait would not block.
  virtual bool IsDone() = 0;
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_WORK_H_
