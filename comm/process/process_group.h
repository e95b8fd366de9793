// SPDX-License-Identifier: Apache-2.0

// ProcessGroup: a group of ranks that are processes. Its calls become operations of the engine.
// Private to comm/process.
#ifndef APOGEE_COMM_PROCESS_PROCESS_GROUP_H_
#define APOGEE_COMM_PROCESS_PROCESS_GROUP_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apogee/comm/process/collective_engine.h"
#include "apogee/comm/process/gpu_channels.h"

namespace apogee::comm::process {

// The state that the groups of one launch share.
struct Shared {
  CollectiveEngine* engine;
  uint32_t session;
  Trace* trace;
  std::mutex mutex;
  std::map<std::string, int> num_copies;  // duplicates made by this process, by group name
  std::map<Channel, int64_t> next;        // sequence numbers
  std::shared_ptr<FlightRecord> record;
  std::shared_ptr<GpuChannels> gpu;  // null: tensors of a GPU are staged through the host
};

class ProcessGroup : public Group {
 public:
  ProcessGroup(int rank, const std::vector<int>& members, std::string name,
               std::chrono::milliseconds timeout, std::shared_ptr<Shared> shared);

  GroupPtr Duplicate(std::chrono::milliseconds timeout) override;

 protected:
  bool TakesDeviceMemory() const override { return shared_->gpu != nullptr; }
  std::shared_ptr<Work> Submit(CollectiveCall call) override;

 private:
  // An operation with the members of the call, this process included.
  std::shared_ptr<Operation> NewOperation(const CollectiveCall& call) const;
  // Announces a call whose data then moves between GPUs.
  std::shared_ptr<Work> SubmitOnGpu(const std::shared_ptr<Operation>& operation);
  std::shared_ptr<Work> Announce(const std::shared_ptr<Operation>& operation);

  std::shared_ptr<const FlightGroup> flight_group_;
  uint64_t hash_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_PROCESS_GROUP_H_
