// SPDX-License-Identifier: Apache-2.0

// Job: a job whose processes find each other over TCP, as each process' environment describes it.
// Private to comm.
//
//   APOGEE_RANK=1 APOGEE_NUM_RANKS=4 APOGEE_ADDRESS=node1:29400 APOGEE_JOB_TOKEN=... program
//
//   APOGEE_ASSIGN_OR_RETURN(const std::optional<tcp::Job> job, tcp::JobInEnvironment());
//   if (job) ...
//
// APOGEE_JOB_TOKEN is the same for all processes of the job. It keeps out strangers and processes
// of other jobs. It is never sent: processes prove to each other that they know it (hello.h).
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
  std::string host;  // where rank 0 listens: a name or an address
  uint16_t port = 0;
  std::string token = {};
  // For rank 0: an inherited socket that already listens there (APOGEE_LISTEN_FD, set by
  // `apogee run`).
  std::optional<int> listener = {};
  // How long the processes wait for each other (APOGEE_CONNECT_TIMEOUT, in seconds).
  std::chrono::milliseconds timeout{120'000};

  // For example "node1:29400".
  std::string Address() const;
};

// std::nullopt if none of APOGEE_RANK, APOGEE_NUM_RANKS and APOGEE_ADDRESS is set. InvalidArgument
// if only some are set, or for invalid values.
absl::StatusOr<std::optional<Job>> JobInEnvironment();

// Names of the variables that belong to one process: its children must not inherit them.
const std::vector<std::string>& JobVariables();

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_JOB_H_
