// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/process/starter.h"

#include "apogee/comm/mpi/transport.h"
#include "apogee/comm/tcp/transport.h"

namespace apogee::comm::process {

const char* NameOf(Starter starter) {
  return starter == Starter::kTcp ? "`apogee run` (or another starter that sets APOGEE_NUM_RANKS)"
                                  : "mpirun or srun";
}

absl::StatusOr<Started> StartedInEnvironment() {
  const std::optional<int> by_mpi = mpi::ProcessesInEnvironment();
  APOGEE_ASSIGN_OR_RETURN(const std::optional<tcp::Job> job, tcp::JobInEnvironment());
  if (by_mpi && job) {
    return InvalidArgument(
        "launch: mpirun or srun has started this process, and APOGEE_RANK, APOGEE_NUM_RANKS and "
        "APOGEE_ADDRESS are set, too, which make it a rank without MPI; unset these, or start it "
        "without mpirun and srun");
  }
  if (by_mpi) return Started{.by = Starter::kMpi, .size = *by_mpi};
  if (job) return Started{.by = Starter::kTcp, .size = job->size};
  return Started{};
}

absl::StatusOr<std::unique_ptr<Transport>> StartTransport() {
  APOGEE_ASSIGN_OR_RETURN(const Started started, StartedInEnvironment());
  if (started.by != Starter::kTcp) return mpi::StartTransport();
  APOGEE_ASSIGN_OR_RETURN(const std::optional<tcp::Job> job, tcp::JobInEnvironment());
  return tcp::StartTransport(*job);
}

}  // namespace apogee::comm::process
