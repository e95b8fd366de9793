// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/process/gpu_channels.h"

#include <cstring>
#include <utility>

#include "apogee/tensor/make_context.h"

namespace apogee::comm::process {

std::string GpuChannels::Announcement(const Members& members) {
  if (members.self != 0) return "";
  {
    std::lock_guard lock(mutex_);
    if (!announced_.insert(members.channel).second) return "";
  }
  const nccl::UniqueId id = ValueOrThrow(api_->NewUniqueId(members.timeout));
  return std::string(id.internal, sizeof(id.internal));
}

nccl::OperationPtr GpuChannels::Start(const Members& members, const std::string& first,
                                      const nccl::GpuCallPtr& call) {
  std::lock_guard lock(mutex_);
  Entry& entry = entries_[members.channel];
  if (entry.communicator == nullptr) {
    nccl::CommunicatorOptions options;
    APOGEE_CHECK(first.size() == sizeof(options.id.internal), "nccl: group ", members.group,
                 ": the first call's announcement has ", first.size(), " bytes; an id has ",
                 sizeof(options.id.internal));
    std::memcpy(options.id.internal, first.data(), first.size());
    entry.context = ValueOrThrow(MakeContext(device_));
    options.api = api_;
    options.rank = members.self;
    options.world_ranks = members.channel_ranks;
    options.name = members.group + " by NCCL";
    if (members.channel.sender >= 0) {
      options.name += ", rank " + std::to_string(members.channel_ranks[0]) + " to " +
                      std::to_string(members.channel_ranks[1]);
    }
    options.timeout = members.timeout;
    options.record = record_;
    options.wait = false;
    options.prepare_thread = [context = entry.context] { cuda::UseDeviceOf(*context); };
    options.tell_peers = [tell = tell_, channel = members.channel, ranks = members.group_ranks](
                             const std::string& why) { tell(channel, ranks, why); };
    entry.communicator = std::make_unique<nccl::Communicator>(std::move(options));
  }
  entry.last = call->Submit(*entry.communicator, entry.context);
  return entry.last;
}

void GpuChannels::Fail(uint64_t group, const std::string& why) {
  std::lock_guard lock(mutex_);
  for (auto& [channel, entry] : entries_) {
    if (channel.group == group && entry.communicator != nullptr) entry.communicator->Abort(why);
  }
}

void GpuChannels::Drain() {
  std::vector<nccl::OperationPtr> operations;
  {
    std::lock_guard lock(mutex_);
    for (auto& [channel, entry] : entries_) {
      if (entry.last != nullptr) operations.push_back(entry.last);
    }
  }
  for (const nccl::OperationPtr& operation : operations) operation->Wait();
}

void GpuChannels::End(const std::string& why) {
  std::map<Channel, Entry> entries;
  {
    std::lock_guard lock(mutex_);
    entries.swap(entries_);
  }
  for (auto& [channel, entry] : entries) {
    if (!why.empty() && entry.communicator != nullptr) entry.communicator->Abort(why);
  }
  // In the order of the channels, which is the same on all members, because ending a communicator
  // waits for its other members.
  for (auto& [channel, entry] : entries) entry.communicator.reset();
}

}  // namespace apogee::comm::process
