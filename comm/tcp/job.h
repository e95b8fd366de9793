// SPDX-License-Identifier: Apache-2.0

// A job whose processes find each other over TCP: what the environment of each says of it. Private
// to comm.
//
//   APOGEE_RANK=1 APOGEE_NUM_RANKS=4 APOGEE_ADDRESS=node1:29400 APOGEE_JOB_TOKEN=... program
//
//   APOGEE_ASSIGN_OR_RETURN(const std::optional<tcp::Job> job, tcp::JobInEnvironment());
//   if (job) ...
//
// APOGEE_JOB_TOKEN, the same for all processes, keeps the processes of other jobs and strangers
// out. It is never sent: processes prove to each other that they know it (hello.h).
#ifndef APOGEE_COMM_TCP_JOB_H_
#define APOGEE_COMM_TCP_JOB_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::comm::tcp {

struct Job {
  static constexpr int kMaxRanks = 4096;
  static constexpr size_t kMaxTokenBytes = 256;

  int rank = 0;
  int size = 1;
  std::string host;  // where rank 0 listens: a name or a number
  uint16_t port = 0;
  std::string token = {};
  // A socket that listens there already, for rank 0 (APOGEE_LISTEN_FD, of `apogee run`).
  std::optional<int> listener = {};
  // How long the processes wait for each other (APOGEE_CONNECT_TIMEOUT, in seconds).
  std::chrono::milliseconds timeout{120'000};

  // "node1:29400"
  std::string Address() const;
};

// Absent: none of APOGEE_RANK, APOGEE_NUM_RANKS and APOGEE_ADDRESS is set. InvalidArgument for some
// of them, or for values that cannot be.
absl::StatusOr<std::optional<Job>> JobInEnvironment();

// The names of the variables that are one process' own: what a child must not take over.
const std::vector<std::string>& JobVariables();

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_JOB_H_
