// SPDX-License-Identifier: Apache-2.0

// Turns an operation into NCCL calls. Private to comm/nccl.
#ifndef APOGEE_COMM_NCCL_ENQUEUE_H_
#define APOGEE_COMM_NCCL_ENQUEUE_H_

#include "apogee/comm/nccl/api.h"
#include "apogee/comm/nccl/operation.h"

namespace apogee::comm::nccl {

// The NCCL function of the call, for messages: "ncclAllReduce".
const char* FunctionName(const Call& call);
// Queues a call that has been checked (Communicator::Submit). `size`: the group's size.
Result Enqueue(const NcclApi& api, const Call& call, int size, Comm comm);

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_ENQUEUE_H_
