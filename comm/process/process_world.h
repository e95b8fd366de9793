// SPDX-License-Identifier: Apache-2.0

// Launches with ranks that are processes, seen from this process: launch() uses them under mpirun,
// srun and `apogee run`. Private to comm.
#ifndef APOGEE_COMM_PROCESS_PROCESS_WORLD_H_
#define APOGEE_COMM_PROCESS_PROCESS_WORLD_H_

#include <functional>

#include "apogee/comm/launch.h"

namespace apogee::comm::process {

// The result of StartedProcesses (launch.h).
absl::StatusOr<Processes> ThisProcess();

// Bytes of tensors that this process has sent to processes on other machines since it started. Data
// that is sent with the announcements of calls does not count.
int64_t BytesToOtherMachines();

// Runs fn as this process' rank. options.num_ranks must not exceed the number of processes; the
// other processes run nothing. Collective over all processes, with the same result on all.
absl::Status Launch(const LaunchOptions& options, int num_threads,
                    const std::function<void(World&)>& fn);

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_PROCESS_WORLD_H_
