// SPDX-License-Identifier: Apache-2.0

// What `apogee run` does: starts a program as several ranks of one job on this machine, waits for
// them, and ends those that are left when one has failed. Linux only.
//
//   APOGEE_ASSIGN_OR_RETURN(const int code, RunRanks({.num_ranks = 4, .command = {"./train"}}));
//
// The ranks find each other over TCP on the loopback interface, under a token of this job
// (comm/tcp). The port needs no choice that another program could take back: this process listens,
// and rank 0 inherits the socket.
#ifndef APOGEE_TOOLS_RUN_RUN_RANKS_H_
#define APOGEE_TOOLS_RUN_RUN_RANKS_H_

#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::tools {

struct RunOptions {
  int num_ranks = 1;
  std::vector<std::string> command;
  // When one has failed: how long the others have to end by themselves before they get SIGTERM, and
  // from then on before they get SIGKILL. At most 0.1 s where the job was aborted (exit code 70).
  double grace_seconds = 5;
};

// Returns the exit code of the rank that failed first, 128 and the signal's number for one that a
// signal ended, 0 where none failed. SIGINT, SIGTERM and SIGHUP are passed on to the ranks; with
// SIGTSTP (Ctrl-Z) the ranks stop, and then this process; with SIGCONT all go on. An error where
// the program cannot be started; none is left then.
absl::StatusOr<int> RunRanks(const RunOptions& options);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_RUN_RUN_RANKS_H_
