// SPDX-License-Identifier: Apache-2.0

// The transport over MPI, between processes started by mpirun or srun. Private to comm.
//
//   APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, mpi::StartTransport());
//
// It asks only for MPI_THREAD_SERIALIZED: above that level MPI libraries are slower and differ.
// Only Start (MPI_Init) and Finish (MPI_Finalize) wait for peers. MPI errors throw Error. Lost
// processes are not noticed: there are no Events::gone.
#ifndef APOGEE_COMM_MPI_TRANSPORT_H_
#define APOGEE_COMM_MPI_TRANSPORT_H_

#include <memory>
#include <optional>

#include "apogee/comm/transport/transport.h"
#include "apogee/core/status.h"

namespace apogee::comm::mpi {

// How many processes mpirun or srun started, this one included, according to the environment; 0 if
// the environment does not say. std::nullopt: this process was started alone.
std::optional<int> ProcessesInEnvironment();

// Calls MPI_Init, which waits for all processes. Returns FailedPrecondition if this build has no
// MPI, and InvalidArgument as RanksPerMachineInEnvironment does.
absl::StatusOr<std::unique_ptr<Transport>> StartTransport();

}  // namespace apogee::comm::mpi

#endif  // APOGEE_COMM_MPI_TRANSPORT_H_
