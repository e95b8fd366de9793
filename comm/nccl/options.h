// SPDX-License-Identifier: Apache-2.0

// The options of a communicator. Private to comm.
#ifndef APOGEE_COMM_NCCL_OPTIONS_H_
#define APOGEE_COMM_NCCL_OPTIONS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/comm/failure/flight_record.h"
#include "apogee/comm/nccl/api.h"

namespace apogee::comm::nccl {

struct CommunicatorOptions {
  std::shared_ptr<const NcclApi> api = nullptr;
  // From NcclApi::NewUniqueId; the same on all members.
  UniqueId id = {};
  // This member's index in world_ranks.
  int rank = 0;
  std::vector<int> world_ranks = {};
  // For messages and flight records, such as "[0 2] copy 1". Empty: the ranks.
  std::string name = "";
  // Limit for making the communicator, for each operation from its Submit on, and for the end.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  std::shared_ptr<FlightRecord> record = nullptr;
  // Whether the constructor waits for the other members.
  bool wait = true;
  // Called first in every thread that calls NCCL: selects this rank's device.
  std::function<void()> prepare_thread = {};
  // Called once when the communicator has failed, on a thread of its own, and waited for at most
  // 0.2 s. Must own what it uses.
  std::function<void(const std::string& why)> tell_peers = {};
};

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_OPTIONS_H_
