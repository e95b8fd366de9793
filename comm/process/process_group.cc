// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/process/process_group.h"

#include <algorithm>
#include <utility>

#include "apogee/comm/failure/overslept.h"

namespace apogee::comm::process {
namespace {

// FNV-1a.
uint64_t Hash(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

class ProcessWork : public Work {
 public:
  ProcessWork(std::shared_ptr<Shared> shared, std::shared_ptr<Operation> operation,
              std::chrono::milliseconds timeout)
      : shared_(std::move(shared)), operation_(std::move(operation)), timeout_(timeout) {}

  void Wait() override {
    const FlightRecord::Waiting waiting(*shared_->record);
    Completion& completion = *operation_->completion;
    std::chrono::milliseconds patience = timeout_;
    Clock::time_point deadline;
    const auto wait = [&] {
      deadline = Clock::now() + patience;
      shared_->engine->Drive(completion, deadline);
      return completion.WaitFor(std::chrono::milliseconds(0));
    };
    while (!wait()) {
      if (Overslept(deadline)) {
        patience = timeout_;
        continue;
      }
      // Either this fails the operation, or all members have arrived and the data is still moving.
      // If a thread is stuck inside the transport, neither happens.
      shared_->engine->TimeOut(operation_, timeout_);
      if (shared_->engine->IsStuck()) {
        completion.Finish("a collective of group " + operation_->group + ": " +
                          shared_->engine->TransportName() + " has not returned for " +
                          std::to_string(kSilence.count()).substr(0, 3) + " s");
      }
      patience = std::min(timeout_, std::chrono::milliseconds(50));
    }
  }
  bool IsDone() override { return operation_->completion->IsDone(); }

 private:
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Operation> operation_;
  std::chrono::milliseconds timeout_;
};

// The Work of a call whose data NCCL moves after the call has been announced.
class GpuWork : public Work {
 public:
  struct Started {
    nccl::OperationPtr last;  // set before the announcement is complete
  };
  GpuWork(std::shared_ptr<Work> announcement, std::shared_ptr<Started> started,
          nccl::GpuCallPtr call)
      : announcement_(std::move(announcement)),
        started_(std::move(started)),
        call_(std::move(call)) {}

  void Wait() override {
    announcement_->Wait();
    started_->last->WaitQueued();
    call_->Join();
  }
  bool IsDone() override {
    return announcement_->IsDone() && (started_->last == nullptr || started_->last->IsQueued());
  }

 private:
  std::shared_ptr<Work> announcement_;
  std::shared_ptr<Started> started_;
  nccl::GpuCallPtr call_;
};

}  // namespace

ProcessGroup::ProcessGroup(int rank, const std::vector<int>& members, std::string name,
                           std::chrono::milliseconds timeout, std::shared_ptr<Shared> shared)
    : Group(rank, members,
            LaneOf(shared->trace, members[static_cast<size_t>(rank)], "communication: " + name)),
      flight_group_(std::make_shared<FlightGroup>(std::move(name), members)),
      hash_(Hash(flight_group_->name)),
      timeout_(timeout),
      shared_(std::move(shared)) {}

GroupPtr ProcessGroup::Duplicate(std::chrono::milliseconds timeout) {
  int number = 0;
  {
    std::lock_guard lock(shared_->mutex);
    number = ++shared_->num_copies[flight_group_->name];
  }
  return std::make_shared<ProcessGroup>(rank(), world_ranks(),
                                        flight_group_->name + " copy " + std::to_string(number),
                                        timeout, shared_);
}

std::shared_ptr<Operation> ProcessGroup::NewOperation(const CollectiveCall& call) const {
  auto operation = std::make_shared<Operation>();
  operation->session = shared_->session;
  operation->group = flight_group_->name;
  operation->channel.group = hash_;
  operation->group_ranks = world_ranks();
  operation->record = shared_->record;
  if (call.kind == CollectiveKind::kSend || call.kind == CollectiveKind::kRecv) {
    const bool send = call.kind == CollectiveKind::kSend;
    operation->channel.sender = send ? rank() : call.root;
    operation->channel.receiver = send ? call.root : rank();
    operation->self = send ? 0 : 1;
    operation->ranks = {world_ranks()[static_cast<size_t>(operation->channel.sender)],
                        world_ranks()[static_cast<size_t>(operation->channel.receiver)]};
  } else {
    operation->self = static_cast<size_t>(rank());
    operation->ranks = world_ranks();
  }
  return operation;
}

std::shared_ptr<Work> ProcessGroup::Submit(CollectiveCall call) {
  const std::shared_ptr<Operation> operation = NewOperation(call);
  const Tensor& any = call.input.defined() ? call.input : call.output;
  // Of unequal parts some members may have none, but all take one way.
  const bool on_gpu =
      any.defined() && !any.context()->is_host() && (any.numel() > 0 || !call.input_counts.empty());
  operation->call = std::move(call);
  return on_gpu ? SubmitOnGpu(operation) : Announce(operation);
}

std::shared_ptr<Work> ProcessGroup::SubmitOnGpu(const std::shared_ptr<Operation>& operation) {
  CollectiveCall call = operation->call;
  for (const Tensor& tensor : {call.input, call.output}) {
    APOGEE_CHECK(!tensor.defined() || tensor.device() == shared_->gpu->device(),
                 CollectiveName(call.kind), ": the tensor is on ", tensor.device().ToString(),
                 ", but rank ", operation->ranks[operation->self], " has ",
                 shared_->gpu->device().ToString(), " (LaunchOptions::device)");
  }
  const int self = static_cast<int>(operation->self);
  const int size = static_cast<int>(operation->ranks.size());
  // Of a pair, the receiver is the second.
  if (operation->channel.sender >= 0) call.root = 1 - self;
  const GpuChannels::Members members{.channel = operation->channel,
                                     .group = operation->group,
                                     .group_ranks = operation->group_ranks,
                                     .channel_ranks = operation->ranks,
                                     .self = self,
                                     .timeout = timeout_};
  const auto gpu_call = std::make_shared<nccl::GpuCall>(std::move(call), self, size);
  const auto started = std::make_shared<GpuWork::Started>();
  operation->announced = shared_->gpu->Announcement(members);
  operation->start = [gpu = shared_->gpu, members, gpu_call, started](const std::string& first) {
    started->last = gpu->Start(members, first, gpu_call);
  };
  return std::make_shared<GpuWork>(Announce(operation), started, gpu_call);
}

std::shared_ptr<Work> ProcessGroup::Announce(const std::shared_ptr<Operation>& operation) {
  {
    std::lock_guard lock(shared_->mutex);
    operation->sequence = shared_->next[operation->channel]++;
  }
  const bool pair = operation->channel.sender >= 0;
  operation->record_id = shared_->record->Call({.group = flight_group_,
                                                .sender = pair ? operation->ranks[0] : -1,
                                                .receiver = pair ? operation->ranks[1] : -1,
                                                .sequence = operation->sequence,
                                                .fingerprint = Fingerprint(operation->call)});
  shared_->engine->Call(operation);
  return std::make_shared<ProcessWork>(shared_, operation, timeout_);
}

}  // namespace apogee::comm::process
