// SPDX-License-Identifier: Apache-2.0

// Meet: how the processes of a job find each other. All connect to rank 0, learn from it where the
// others listen, and then connect pairwise. Private to comm/tcp.
//
//   APOGEE_ASSIGN_OR_RETURN(Mesh mesh, Meet(job));
#ifndef APOGEE_COMM_TCP_MEETING_H_
#define APOGEE_COMM_TCP_MEETING_H_

#include <string>
#include <vector>

#include "apogee/comm/tcp/job.h"
#include "apogee/comm/tcp/socket.h"

namespace apogee::comm::tcp {

struct Mesh {
  std::vector<Socket> peers;          // by rank; this process' own is closed
  std::vector<std::string> machines;  // by rank
};

// Waits for all processes, at most job.timeout for each step. Rank 0's errors are told to all
// processes that have arrived.
//   InvalidArgument  processes contradict each other (the same rank twice, different numbers of
//                    ranks), or rank 0's machine does not have the address, or the process that
//                    listens there does not know the job's token
//   Unavailable      a process does not arrive or cannot be reached
absl::StatusOr<Mesh> Meet(const Job& job);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_MEETING_H_
