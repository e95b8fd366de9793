// SPDX-License-Identifier: Apache-2.0

// The transport over TCP: one connection between every two processes of a job. Private to comm.
//
//   APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, tcp::StartTransport(job));
//
// A process that ends without saying goodbye is noticed at once (Events::gone). A process that
// receives another's Abort ends with that exit code.
#ifndef APOGEE_COMM_TCP_TRANSPORT_H_
#define APOGEE_COMM_TCP_TRANSPORT_H_

#include <memory>

#include "apogee/comm/tcp/job.h"
#include "apogee/comm/transport/transport.h"

namespace apogee::comm::tcp {

// Connects to all processes and waits for them. Errors: those of Meet (meeting.h), and
// InvalidArgument as RanksPerMachineInEnvironment returns it.
absl::StatusOr<std::unique_ptr<Transport>> StartTransport(const Job& job);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_TRANSPORT_H_
