// SPDX-License-Identifier: Apache-2.0

// One process of `apogee run`: started, and what became of it. Linux only.
//
//   APOGEE_ASSIGN_OR_RETURN(ChildRank child, StartRank(command, {"APOGEE_RANK=1"}, -1));
//   ...
//   const int code = ExitCodeOf(status_of_waitpid);
#ifndef APOGEE_TOOLS_RUN_CHILD_RANK_H_
#define APOGEE_TOOLS_RUN_CHILD_RANK_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::tools {

// Starts `command`, a path or a name on PATH with its arguments, in a process group of its own,
// with these settings ("NAME=value") in the environment instead of those of another job, no input,
// no signal blocked, and the descriptor `inherited` (-1: none). It ends when this process does.
// NotFound or PermissionDenied for a command that cannot be started.
absl::StatusOr<pid_t> StartRank(const std::vector<std::string>& command,
                                const std::vector<std::string>& settings, int inherited);

// Of a status of waitpid: the exit code, or 128 and the signal's number.
int ExitCodeOf(int status);
// "exited with 3", "was ended by signal 9 (Killed)"
std::string DescribeEnd(int status);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_RUN_CHILD_RANK_H_
