// SPDX-License-Identifier: Apache-2.0

#include <cstdlib>

#include "apogee/comm/mpi/transport.h"

namespace apogee::comm::mpi {

std::optional<int> ProcessesInEnvironment() {
  // Open MPI's mpirun; MPICH's mpirun and srun --mpi=pmi2.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  // srun --mpi=pmix tells a process only its own number; the size may be in Slurm's variable. Other
  // SLURM_* variables prove nothing: they are also set for programs that a batch script runs
  // without srun.
  if (std::getenv("PMIX_RANK") != nullptr) {
    const char* value = std::getenv("SLURM_STEP_NUM_TASKS");
    return value != nullptr ? std::atoi(value) : 0;
  }
  return std::nullopt;
}

}  // namespace apogee::comm::mpi
