// SPDX-License-Identifier: Apache-2.0

// What a build without MPI has for it.
#include "apogee/comm/mpi/library.h"
#include "apogee/comm/mpi/transport.h"

namespace apogee::comm::mpi {

std::optional<LibraryVersions> Library() { return std::nullopt; }

absl::StatusOr<std::unique_ptr<Transport>> StartTransport() {
  return absl::FailedPreconditionError(
      "started by mpirun or srun, but this build has no MPI: install libopenmpi-dev (or "
      "libmpich-dev) and build again, start the processes with `apogee run`, which needs none, or "
      "start the program by itself, whose ranks are threads");
}

}  // namespace apogee::comm::mpi
