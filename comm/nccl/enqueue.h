// SPDX-License-Identifier: Apache-2.0

// An operation as calls of NCCL. Private to comm/nccl.
#ifndef APOGEE_COMM_NCCL_ENQUEUE_H_
#define APOGEE_COMM_NCCL_ENQUEUE_H_

#include "apogee/comm/nccl/api.h"
#include "apogee/comm/nccl/operation.h"

namespace apogee::comm::nccl {

// Of the calls, for messages: "ncclAllReduce".
const char* FunctionName(const Call& call);
// The call has been checked (Communicator::Submit). `size`: of the group.
Result Enqueue(const NcclApi& api, const Call& call, int size, Comm comm);

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_ENQUEUE_H_
