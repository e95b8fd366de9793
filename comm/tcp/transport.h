// SPDX-License-Identifier: Apache-2.0

// The transport over TCP: a connection between every two processes of a job. Private to comm.
//
//   APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, tcp::StartTransport(job));
//
// A process that ends without having said goodbye is noticed at once (Events::gone). One that
// another's Abort reaches ends with that exit code.
#ifndef APOGEE_COMM_TCP_TRANSPORT_H_
#define APOGEE_COMM_TCP_TRANSPORT_H_

#include <memory>

#include "apogee/comm/tcp/job.h"
#include "apogee/comm/transport/transport.h"

namespace apogee::comm::tcp {

// Waits for all processes. Errors: those of Meet (meeting.h); InvalidArgument as from
// RanksPerMachineInEnvironment.
absl::StatusOr<std::unique_ptr<Transport>> StartTransport(const Job& job);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_TRANSPORT_H_
