// SPDX-License-Identifier: Apache-2.0

// Who started this process as one of several, and the transport between them. Private to comm.
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
  kTcp,     // `apogee run`, or whoever has set APOGEE_RANK, APOGEE_NUM_RANKS and APOGEE_ADDRESS
};

struct Started {
  Starter by = Starter::kNobody;
  int size = 1;  // 0: not known before the transport has started
};

// "mpirun or srun", "`apogee run`"; for messages.
const char* NameOf(Starter starter);

// InvalidArgument where the variables of both are set, or those of TCP are not all, or not right.
absl::StatusOr<Started> StartedInEnvironment();

// Waits for the other processes.
absl::StatusOr<std::unique_ptr<Transport>> StartTransport();

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_STARTER_H_
