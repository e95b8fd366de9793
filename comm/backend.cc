#include "apogee/comm/backend.h"

#include "apogee/comm/mpi/transport.h"
#include "apogee/tensor/make_context.h"

namespace apogee::comm {

absl::StatusOr<Backend> ChooseBackend(const LaunchOptions& options, int num_processes) {
  const std::string& name = options.comm;
  if (name != "auto" && name != "local" && name != "mpi" && name != "nccl") {
    return InvalidArgument("launch: comm '", name,
                           "': expected auto, local (ranks are threads), mpi (ranks are processes) "
                           "or nccl (ranks are processes with a GPU each)");
  }
  APOGEE_ASSIGN_OR_RETURN(const DeviceName device, ParseDevice(options.device));
  const bool on_cpu = device.type == DeviceType::kCpu;
  if (name == "nccl" && on_cpu) {
    return InvalidArgument("launch: comm nccl moves tensors between GPUs, but device is cpu; use ",
                           "device cuda, or comm mpi");
  }
  if (num_processes == 1) {
    // mpirun -np 1 starts what is one rank, and communicates with nobody.
    const bool alone = mpi::ProcessesInEnvironment().has_value() && options.num_ranks <= 1;
    if (name == "auto" || name == "local" || alone) return Backend::kLocal;
    return InvalidArgument("launch: comm ", name, " is for ranks that are processes, but this ",
                           "process was started alone; start it with mpirun -np N or srun, or use ",
                           "comm local, whose ranks are threads");
  }
  if (name == "local") {
    return InvalidArgument("launch: comm local is for ranks that are threads of one process, but ",
                           "mpirun or srun started ", num_processes,
                           "; start the program without it, or use comm mpi or nccl");
  }
  return name == "mpi" || on_cpu ? Backend::kMpi : Backend::kNccl;
}

}  // namespace apogee::comm
