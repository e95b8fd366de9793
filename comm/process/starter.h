// SPDX-License-Identifier: Apache-2.0

// How this process was started as one of several, and the transport between them. Private to comm.
//
//   APOGEE_ASSIGN_OR_RETURN(const Started started, StartedInEnvironment());
//   if (started.by == Starter::kTcp) ...
#ifndef APOGEE_COMM_PROCESS_STARTER_H_
#define APOGEE_COMM_PROCESS_STARTER_H_

#include <memory>

#include "apogee/comm/transport/transport.h"
#include "apogee/core/status.h"

namespace apogee::comm::process {

enum class Starter : uint8_t {
  kNobody,  // started alone
  kMpi,     // mpirun, srun
  kTcp,     // `apogee run`, or anything that sets APOGEE_RANK, APOGEE_NUM_RANKS, APOGEE_ADDRESS
};

struct Started {
  Starter by = Starter::kNobody;
  int size = 1;  // 0: not known before the transport has started
};

// For messages: "mpirun or srun", "`apogee run`".
const char* NameOf(Starter starter);

// InvalidArgument if the variables of both are set, or those of TCP are incomplete or wrong.
absl::StatusOr<Started> StartedInEnvironment();

// Connects to the other processes, and waits for them.
absl::StatusOr<std::unique_ptr<Transport>> StartTransport();

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_STARTER_H_
