// SPDX-License-Identifier: Apache-2.0

// The choice of the backend that carries the groups of a launch. Private to comm.
//
//   APOGEE_ASSIGN_OR_RETURN(const Backend backend, ChooseBackend(options, processes.size));
#ifndef APOGEE_COMM_BACKEND_H_
#define APOGEE_COMM_BACKEND_H_

#include "apogee/comm/launch.h"

namespace apogee::comm {

enum class Backend : uint8_t {
  kLocal,  // ranks are threads
  kMpi,    // processes; tensors of a GPU are staged through the host
  kTcp,    // as kMpi, but without MPI
  kNccl,   // processes with a GPU each
};

// `num_processes`: as many as mpirun, srun or `apogee run` started; 1 if ranks are threads. Returns
// InvalidArgument for an unknown backend, or one that cannot be used here.
absl::StatusOr<Backend> ChooseBackend(const LaunchOptions& options, int num_processes);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_BACKEND_H_
