// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/backend.h"

#include "apogee/comm/process/starter.h"
#include "apogee/core/text/enum_names.h"
#include "apogee/tensor/make_context.h"

namespace apogee::comm {
namespace {

constexpr EnumName<Backend> kBackends[] = {{Backend::kAuto, "auto"},
                                           {Backend::kLocal, "local"},
                                           {Backend::kMpi, "mpi"},
                                           {Backend::kTcp, "tcp"},
                                           {Backend::kNccl, "nccl"}};

}  // namespace

const char* Name(Backend backend) { return NameOf<Backend>(kBackends, backend); }

absl::StatusOr<Backend> ParseBackend(const std::string& text) {
  return ParseName<Backend>("comm", kBackends, text);
}

absl::StatusOr<Backend> ChooseBackend(const LaunchOptions& options, int num_processes) {
  const Backend backend = options.comm;
  const char* const name = Name(backend);
  APOGEE_ASSIGN_OR_RETURN(const DeviceName device, ParseDevice(options.device));
  const bool has_nccl = device.type == DeviceType::kCuda;
  if (backend == Backend::kNccl && !has_nccl) {
    return InvalidArgument("launch: comm nccl moves tensors between NVIDIA GPUs, but device is ",
                           DeviceTypeName(device.type), "; use device ",
                           DeviceTypeName(DeviceType::kCuda), ", or comm mpi");
  }
  APOGEE_ASSIGN_OR_RETURN(const process::Started started, process::StartedInEnvironment());
  const bool by_tcp = started.by == process::Starter::kTcp;
  if (num_processes == 1) {
    // `mpirun -np 1` starts a single rank, which has no peers to communicate with.
    const bool alone = started.by != process::Starter::kNobody && options.num_ranks <= 1;
    if (backend == Backend::kAuto || backend == Backend::kLocal || alone) return Backend::kLocal;
    return InvalidArgument(
        "launch: comm ", name, " is for ranks that are processes, but this ",
        "process was started alone; start it with mpirun -np N or srun, or ",
        "without MPI with apogee run -n N, or use comm local, whose ranks are threads");
  }
  if (backend == Backend::kLocal) {
    return InvalidArgument("launch: comm local is for ranks that are threads of one process, but ",
                           process::NameOf(started.by), " started ", num_processes,
                           "; start the program without it, or use comm ", by_tcp ? "tcp" : "mpi",
                           " or nccl");
  }
  if ((backend == Backend::kMpi && by_tcp) || (backend == Backend::kTcp && !by_tcp)) {
    return InvalidArgument("launch: comm ", name, " is for processes of ",
                           backend == Backend::kMpi ? "mpirun or srun" : "apogee run", ", but ",
                           process::NameOf(started.by), " started these; use comm ",
                           by_tcp ? "tcp" : "mpi", " or auto");
  }
  if (backend == Backend::kNccl || (backend == Backend::kAuto && has_nccl)) return Backend::kNccl;
  return by_tcp ? Backend::kTcp : Backend::kMpi;
}

}  // namespace apogee::comm
