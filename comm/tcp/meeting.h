// SPDX-License-Identifier: Apache-2.0

// How the processes of a job find each other: all connect to rank 0, hear from it where the others
// listen, and connect pairwise. Private to comm/tcp.
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

// Waits for all processes, at most job.timeout for each step. InvalidArgument where processes say
// what cannot be (two of one rank, other numbers of ranks), where rank 0's machine does not have
// the address, and where what listens there does not know the job's token; Unavailable where one
// does not come or cannot be reached. Rank 0's findings are told to all that have come.
absl::StatusOr<Mesh> Meet(const Job& job);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_MEETING_H_
