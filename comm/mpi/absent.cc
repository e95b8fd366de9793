// SPDX-License-Identifier: Apache-2.0

// Replaces comm/mpi in a build without MPI.
#include "apogee/comm/mpi/library.h"
#include "apogee/comm/mpi/transport.h"

namespace apogee::comm::mpi {

std::optional<LibraryVersions> Library() { return std::nullopt; }

absl::StatusOr<std::unique_ptr<Transport>> StartTransport() {
  return absl::FailedPreconditionError(
      "started by mpirun or srun, but this build has no MPI: install libopenmpi-dev (or "
      "libmpich-dev) and build again, start the processes with `apogee run`, which needs none, or "
      "start the program alone: its ranks are threads then");
}

}  // namespace apogee::comm::mpi
