// SPDX-License-Identifier: Apache-2.0

// GpuChannels: what moves the GPU tensors of this process' groups, one NCCL communicator for the
// collectives of a group and one for each direction between two of its members.
//
//   operation->announced = channels.Announcement(channel, self);       // in the rank's thread
//   operation->start = [=](const std::string& first) {               // once all have announced it
//     last = channels->Start({...}, first, gpu_call);
//   };
//
// NCCL needs calls of one communicator in one order on all members. Calls of a channel
// (comm/process/message.h) start in the order of their numbers everywhere; between channels there
// is no order, so each has a communicator, a stream, and what it takes to make them: the id goes
// along with the announcement of the channel's first call, from the member that comes first in it.
// Starting never waits. A communicator that fails tells the group's other members, whose
// communicators of this group then fail, too. Private to comm/process.
#ifndef APOGEE_COMM_PROCESS_GPU_CHANNELS_H_
#define APOGEE_COMM_PROCESS_GPU_CHANNELS_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "apogee/comm/nccl/gpu_call.h"
#include "apogee/comm/process/message.h"

namespace apogee::comm::process {

class GpuChannels {
 public:
  // Tells the members `ranks` of the group that it has failed. Must own what it uses.
  using Tell = std::function<void(const Channel& channel, const std::vector<int>& ranks,
                                  const std::string& why)>;
  // A channel's group, for its first call.
  struct Members {
    Channel channel;
    std::string group;               // its name
    std::vector<int> group_ranks;    // in the world
    std::vector<int> channel_ranks;  // the same, or the two of a pair
    int self = 0;                    // this member's place among them
    std::chrono::milliseconds timeout = {};
  };

  GpuChannels(std::shared_ptr<const nccl::NcclApi> api, Device device,
              std::shared_ptr<FlightRecord> record, Tell tell)
      : api_(std::move(api)), device_(device), record_(std::move(record)), tell_(std::move(tell)) {}

  Device device() const { return device_; }
  // What this member announces its next call with data with. Throws Error where NCCL gives no id.
  std::string Announcement(const Members& members);
  // `first`: what the channel's first member has announced. Returns what to wait for.
  nccl::OperationPtr Start(const Members& members, const std::string& first,
                           const nccl::GpuCallPtr& call);
  // The communicators of a group whose channels' hash this is have no more to expect.
  void Fail(uint64_t group, const std::string& why);
  // Waits until the GPU has come past all that was started. Throws CommError.
  void Drain();
  // Ends the communicators; every member does, at the same time. `why`: empty where all is well,
  // else nothing is waited for.
  void End(const std::string& why);

 private:
  struct Entry {
    ContextPtr context;  // whose stream NCCL uses
    std::unique_ptr<nccl::Communicator> communicator;
    nccl::OperationPtr last;
  };

  const std::shared_ptr<const nccl::NcclApi> api_;
  const Device device_;
  const std::shared_ptr<FlightRecord> record_;
  const Tell tell_;
  std::mutex mutex_;
  std::set<Channel> announced_;
  std::map<Channel, Entry> entries_;
};

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_GPU_CHANNELS_H_
