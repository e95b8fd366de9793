// SPDX-License-Identifier: Apache-2.0

// GpuChannels: moves the GPU tensors of this process' groups over NCCL. Each group has one NCCL
// communicator for its collectives, and one per direction between two of its members.
//
//   operation->announced = channels.Announcement(members);           // on the rank's thread
//   operation->start = [=](const std::string& first) {               // once all have announced it
//     last = channels->Start(members, first, gpu_call);
//   };
//
// NCCL needs the calls of one communicator in the same order on all members. The calls of a channel
// (comm/process/message.h) start in the order of their numbers on every member. Between channels
// there is no order, so each channel has its own communicator and its own stream. The channel's
// first member sends the communicator's id along with the announcement of the channel's first call.
// Starting a call never waits. If a communicator fails, it tells the group's other members, whose
// communicators of this group then fail too. Private to comm/process.
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
  // Tells the members `ranks` of the group that the group has failed. Must own what it uses.
  using Tell = std::function<void(const Channel& channel, const std::vector<int>& ranks,
                                  const std::string& why)>;
  // The group of a channel; used for the channel's first call.
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
  // The text that this member sends with the announcement of its next call that has data. Throws
  // Error if NCCL gives no id.
  std::string Announcement(const Members& members);
  // `first`: the announcement of the channel's first member. Returns the operation to wait for.
  nccl::OperationPtr Start(const Members& members, const std::string& first,
                           const nccl::GpuCallPtr& call);
  // Fails the communicators of the group with this hash.
  void Fail(uint64_t group, const std::string& why);
  // Waits until the GPU has completed all started calls. Throws CommError.
  void Drain();
  // Ends the communicators. Every member must call it at the same time. `why`: empty on success;
  // else nothing is waited for.
  void End(const std::string& why);

 private:
  struct Entry {
    ContextPtr context;  // NCCL uses its stream
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
