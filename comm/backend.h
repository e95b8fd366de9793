// SPDX-License-Identifier: Apache-2.0

// The choice of the backend that carries the groups of a launch. Private to comm.
//
//   APOGEE_ASSIGN_OR_RETURN(const Backend backend, ChooseBackend(options, processes.size));
#ifndef APOGEE_COMM_BACKEND_H_
#define APOGEE_COMM_BACKEND_H_

#include "apogee/comm/launch.h"

namespace apogee::comm {

// `num_processes`: as many as mpirun, srun or `apogee run` started; 1 if ranks are threads. Never
// returns kAuto. Returns InvalidArgument for a backend that cannot be used here.
absl::StatusOr<Backend> ChooseBackend(const LaunchOptions& options, int num_processes);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_BACKEND_H_
