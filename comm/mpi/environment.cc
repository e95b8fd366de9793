#include <charconv>
#include <cstdlib>
#include <string_view>

#include "apogee/comm/mpi/transport.h"

namespace apogee::comm::mpi {

std::optional<int> ProcessesInEnvironment() {
  // Open MPI's mpirun; MPICH's mpirun and srun --mpi=pmi2.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  // srun --mpi=pmix tells a process its own number only; the size may be in Slurm's variable.
  // SLURM_* alone say nothing: they are also set for what a batch script runs without srun.
  if (std::getenv("PMIX_RANK") != nullptr) {
    const char* value = std::getenv("SLURM_STEP_NUM_TASKS");
    return value != nullptr ? std::atoi(value) : 0;
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<int>> RanksPerMachineInEnvironment() {
  const char* value = std::getenv("APOGEE_RANKS_PER_MACHINE");
  if (value == nullptr) return std::nullopt;
  const std::string_view text(value);
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error != std::errc() || end != text.data() + text.size() || ranks < 1) {
    return InvalidArgument("launch: the environment variable APOGEE_RANKS_PER_MACHINE is '", text,
                           "'; it must be a positive number, how many ranks count as one machine, "
                           "or not be set: then the machines are what they are");
  }
  return ranks;
}

}  // namespace apogee::comm::mpi
