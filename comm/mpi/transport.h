// SPDX-License-Identifier: Apache-2.0

// The transport over MPI, between the processes that mpirun or srun started. Private to comm.
//
//   APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, mpi::StartTransport());
//
// It asks for MPI_THREAD_SERIALIZED only: MPI libraries differ in, and are slower at, more than
// that. Of the calls, Start (MPI_Init) and Finish (MPI_Finalize) wait for peers. MPI errors throw
// Error. Lost processes are not noticed: there are no Events::gone.
#ifndef APOGEE_COMM_MPI_TRANSPORT_H_
#define APOGEE_COMM_MPI_TRANSPORT_H_

#include <memory>
#include <optional>

#include "apogee/comm/transport/transport.h"
#include "apogee/core/status.h"

namespace apogee::comm::mpi {

// How many processes mpirun or srun started, this one among them, according to the environment; 0
// where they do not say. Absent: this process was started alone.
std::optional<int> ProcessesInEnvironment();

// MPI_Init: waits for all processes. FailedPrecondition without MPI in this build;
// InvalidArgument as from RanksPerMachineInEnvironment.
absl::StatusOr<std::unique_ptr<Transport>> StartTransport();

}  // namespace apogee::comm::mpi

#endif  // APOGEE_COMM_MPI_TRANSPORT_H_
