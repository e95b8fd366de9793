// SPDX-License-Identifier: Apache-2.0

// The caller's side of a connection's first words (hello.h). Private to comm/tcp.
#ifndef APOGEE_COMM_TCP_INTRODUCTION_H_
#define APOGEE_COMM_TCP_INTRODUCTION_H_

#include "apogee/comm/tcp/job.h"
#include "apogee/comm/tcp/socket.h"

namespace apogee::comm::tcp {

// Proves to rank `to` that this process is of the job, and says that it listens on `port`; the
// answer is the next that comes. FailedPrecondition where the called one does not prove that it is
// of the job: it has got a call then, and nothing else. Unavailable and DeadlineExceeded as of
// sockets.
absl::Status Introduce(const Socket& socket, const Job& job, int to, uint16_t port,
                       Clock::time_point deadline);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_INTRODUCTION_H_
