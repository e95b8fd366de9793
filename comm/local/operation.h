// SPDX-License-Identifier: Apache-2.0

// Operation: one collective among ranks of this process. It collects the members' calls and is then
// executed in shares. Private to comm/local.
#ifndef APOGEE_COMM_LOCAL_OPERATION_H_
#define APOGEE_COMM_LOCAL_OPERATION_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "apogee/comm/failure/flight_record.h"
#include "apogee/comm/group.h"

namespace apogee::comm::local {

// Filled in under the group's mutex until every member has arrived. Then it is read-only, except
// for the completion below, which has a mutex of its own.
struct Operation {
  Operation(int64_t sequence, size_t size)
      : sequence(sequence), calls(size), arrived(size, false) {}

  int64_t sequence;
  std::vector<CollectiveCall> calls;  // by rank in the group
  std::vector<bool> arrived;
  size_t num_arrived = 0;
  // The flight records of the members, with the ids of their calls.
  std::vector<std::pair<std::shared_ptr<FlightRecord>, uint64_t>> notes;

  // Completion: the operation is done when `shares_left` reaches 0, or by an error.
  void FinishShare();
  // `missing`: world ranks that have not arrived.
  void Fail(const std::string& message, const std::vector<int>& missing = {});
  bool IsDone();
  // Returns false on timeout. Throws CommError once the operation has failed.
  bool WaitFor(std::chrono::milliseconds timeout);

  std::mutex mutex;
  std::condition_variable finished;
  int shares_left = -1;
  bool done = false;
  std::string error;

 private:
  void Finish(const std::vector<int>& missing = {});
};

// Bytes that all shares together read and write.
int64_t BytesMoved(const Operation& operation);
// Executes share `index`; there is one share per member. Each element is computed by one share,
// from all members' inputs in a fixed order. Shares write disjoint outputs, so they may run in any
// order and in parallel.
void RunShare(const Operation& operation, size_t index);

}  // namespace apogee::comm::local

#endif  // APOGEE_COMM_LOCAL_OPERATION_H_
