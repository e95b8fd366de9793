// SPDX-License-Identifier: Apache-2.0

// The ranks that are processes, seen from this one: what launch() runs under mpirun, srun and
// `apogee run`.
// Private to comm.
#ifndef APOGEE_COMM_PROCESS_PROCESS_WORLD_H_
#define APOGEE_COMM_PROCESS_PROCESS_WORLD_H_

#include <functional>

#include "apogee/comm/launch.h"

namespace apogee::comm::process {

// What StartedProcesses (launch.h) returns.
absl::StatusOr<Processes> ThisProcess();

// Bytes of tensors that this process has sent to processes on other machines since it started;
// without what goes along with the announcements of calls.
int64_t BytesToOtherMachines();

// Runs fn as this process' rank of `options.num_ranks`, which must not be more than there are
// processes; those beyond do nothing. Collective over all processes; returns the same on all.
absl::Status Launch(const LaunchOptions& options, int num_threads,
                    const std::function<void(World&)>& fn);

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_PROCESS_WORLD_H_
