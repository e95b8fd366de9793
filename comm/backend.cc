// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/backend.h"

#include "apogee/comm/process/starter.h"
#include "apogee/tensor/make_context.h"

namespace apogee::comm {
namespace {

bool IsBackend(const std::string& name) {
  return name == "auto" || name == "local" || name == "mpi" || name == "tcp" || name == "nccl";
}

}  // namespace

absl::StatusOr<Backend> ChooseBackend(const LaunchOptions& options, int num_processes) {
  const std::string& name = options.comm;
  if (!IsBackend(name)) {
    return InvalidArgument("launch: comm '", name,
                           "': expected auto, local (ranks are threads), mpi or tcp (ranks are "
                           "processes of mpirun, or of apogee run) or nccl (ranks are processes "
                           "with a GPU each)");
  }
  APOGEE_ASSIGN_OR_RETURN(const DeviceName device, ParseDevice(options.device));
  const bool has_nccl = device.type == DeviceType::kCuda;
  if (name == "nccl" && !has_nccl) {
    return InvalidArgument("launch: comm nccl moves tensors between NVIDIA GPUs, but device is ",
                           DeviceTypeName(device.type), "; use device ",
                           DeviceTypeName(DeviceType::kCuda), ", or comm mpi");
  }
  APOGEE_ASSIGN_OR_RETURN(const process::Started started, process::StartedInEnvironment());
  const bool by_tcp = started.by == process::Starter::kTcp;
  if (num_processes == 1) {
    // `mpirun -np 1` starts a single rank, which has no peers to communicate with.
    const bool alone = started.by != process::Starter::kNobody && options.num_ranks <= 1;
    if (name == "auto" || name == "local" || alone) return Backend::kLocal;
    return InvalidArgument(
        "launch: comm ", name, " is for ranks that are processes, but this ",
        "process was started alone; start it with mpirun -np N or srun, or ",
        "without MPI with apogee run -n N, or use comm local, whose ranks are threads");
  }
  if (name == "local") {
    return InvalidArgument("launch: comm local is for ranks that are threads of one process, but ",
                           process::NameOf(started.by), " started ", num_processes,
                           "; start the program without it, or use comm ", by_tcp ? "tcp" : "mpi",
                           " or nccl");
  }
  if ((name == "mpi" && by_tcp) || (name == "tcp" && !by_tcp)) {
    return InvalidArgument("launch: comm ", name, " is for processes of ",
                           name == "mpi" ? "mpirun or srun" : "apogee run", ", but ",
                           process::NameOf(started.by), " started these; use comm ",
                           by_tcp ? "tcp" : "mpi", " or auto");
  }
  if (name == "nccl" || (name == "auto" && has_nccl)) return Backend::kNccl;
  return by_tcp ? Backend::kTcp : Backend::kMpi;
}

}  // namespace apogee::comm
