// SPDX-License-Identifier: Apache-2.0

// `apogee run`: starts a program as several ranks of one job on this machine, waits for them, and
// ends the others when one has failed. Linux only.
//
//   APOGEE_ASSIGN_OR_RETURN(const int code, RunRanks({.num_ranks = 4, .command = {"./train"}}));
//
// The ranks find each other over TCP on the loopback interface, with a token of this job
// (comm/tcp). This process opens the listening socket and rank 0 inherits it, so no other program
// can take the port in between.
#ifndef APOGEE_TOOLS_RUN_RUN_RANKS_H_
#define APOGEE_TOOLS_RUN_RUN_RANKS_H_

#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::tools {

struct RunOptions {
  int num_ranks = 1;
  std::vector<std::string> command;
  // After one rank has failed: the seconds that the others have to end by themselves before
  // SIGTERM, and the seconds from SIGTERM to SIGKILL. At most 0.1 s if the job was aborted (exit
  // code 70).
  double grace_seconds = 5;
};

// Returns the exit code of the rank that failed first, 128 plus the signal's number if a signal
// ended it, or 0 if none failed. Passes SIGINT, SIGTERM and SIGHUP on to the ranks. SIGTSTP
// (Ctrl-Z) stops the ranks, then this process; SIGCONT continues all. If the program cannot be
// started, returns an error and leaves no process behind.
absl::StatusOr<int> RunRanks(const RunOptions& options);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_RUN_RUN_RANKS_H_
