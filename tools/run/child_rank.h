// SPDX-License-Identifier: Apache-2.0

// One process of `apogee run`: starts it and describes how it ended. Linux only.
//
//   APOGEE_ASSIGN_OR_RETURN(pid_t child, StartRank(command, {"APOGEE_RANK=1"}, -1));
//   ...
//   const int code = ExitCodeOf(status_of_waitpid);
#ifndef APOGEE_TOOLS_RUN_CHILD_RANK_H_
#define APOGEE_TOOLS_RUN_CHILD_RANK_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::tools {

// Starts `command` (a path or a name on PATH, then arguments) in a process group of its own. Its
// environment is this process's with `settings` ("NAME=value") in place of any settings of another
// job. Its standard input is empty, no signal is blocked, and it inherits the descriptor
// `inherited` (-1: none). It is killed when this process ends. NotFound or PermissionDenied if the
// command cannot be started.
absl::StatusOr<pid_t> StartRank(const std::vector<std::string>& command,
                                const std::vector<std::string>& settings, int inherited);

// From a status of waitpid: the exit code, or 128 plus the signal's number.
int ExitCodeOf(int status);
// "exited with 3", "was ended by signal 9 (Killed)"
std::string DescribeEnd(int status);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_RUN_CHILD_RANK_H_
