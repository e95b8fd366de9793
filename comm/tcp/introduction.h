// SPDX-License-Identifier: Apache-2.0

// The first messages of a connection (hello.h) on the caller's side. Private to comm/tcp.
#ifndef APOGEE_COMM_TCP_INTRODUCTION_H_
#define APOGEE_COMM_TCP_INTRODUCTION_H_

#include "apogee/comm/tcp/job.h"
#include "apogee/comm/tcp/socket.h"

namespace apogee::comm::tcp {

// Proves to rank `to` that this process belongs to the job, and tells it that this process listens
// on `port`. The answer is the next message to arrive. Returns FailedPrecondition if the called
// process does not prove that it belongs to the job; it has received only a Call then. Returns
// Unavailable and DeadlineExceeded as socket.h does.
absl::Status Introduce(const Socket& socket, const Job& job, int to, uint16_t port,
                       Clock::time_point deadline);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_INTRODUCTION_H_
