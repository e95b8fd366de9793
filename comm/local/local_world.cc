// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/local/local_world.h"

#include <algorithm>
#include <utility>

#include "apogee/comm/failure/outcomes.h"
#include "apogee/comm/failure/overslept.h"
#include "apogee/comm/fingerprint.h"
#include "apogee/comm/members.h"

namespace apogee::comm::local {
namespace {

// Operations that move fewer bytes run at once on the thread that arrives last, which is faster.
constexpr int64_t kInlineBytes = 64 << 10;

class LocalWork : public Work {
 public:
  LocalWork(std::shared_ptr<GroupState> state, std::shared_ptr<Operation> operation,
            std::shared_ptr<FlightRecord> record, std::chrono::milliseconds timeout)
      : state_(std::move(state)),
        operation_(std::move(operation)),
        record_(std::move(record)),
        timeout_(timeout) {}

  void Wait() override {
    const FlightRecord::Waiting waiting(*record_);
    if (WaitWithin()) return;
    state_->TimeOut(operation_, timeout_);
    // Either TimeOut has failed the operation, or all members have arrived and the data is still
    // moving: then it will complete.
    while (!operation_->WaitFor(timeout_)) {
    }
  }
  bool IsDone() override { return operation_->IsDone(); }

 private:
  // Returns false on timeout.
  bool WaitWithin() {
    while (true) {
      const auto deadline = std::chrono::steady_clock::now() + timeout_;
      if (operation_->WaitFor(timeout_)) return true;
      if (!Overslept(deadline)) return false;
    }
  }

  std::shared_ptr<GroupState> state_;
  std::shared_ptr<Operation> operation_;
  std::shared_ptr<FlightRecord> record_;
  std::chrono::milliseconds timeout_;
};

class LocalGroup : public Group {
 public:
  LocalGroup(int rank, std::shared_ptr<GroupState> state, std::chrono::milliseconds timeout,
             Trace* trace)
      : Group(rank, state->members(),
              LaneOf(trace, state->members()[static_cast<size_t>(rank)],
                     "communication: " + state->name())),
        state_(std::move(state)),
        timeout_(timeout),
        trace_(trace) {}

  GroupPtr Duplicate(std::chrono::milliseconds timeout) override {
    return std::make_shared<LocalGroup>(rank(), state_->Copy(rank()), timeout, trace_);
  }

 protected:
  bool TakesDeviceMemory() const override { return true; }
  std::shared_ptr<Work> Submit(CollectiveCall call) override {
    // Other ranks' shares read and write it.
    for (const Tensor& tensor : {call.input, call.output}) {
      if (tensor.defined()) tensor.context()->Synchronize();
    }
    return std::make_shared<LocalWork>(state_, state_->Arrive(rank(), std::move(call)),
                                       state_->record(rank()), timeout_);
  }

 private:
  std::shared_ptr<GroupState> state_;
  std::chrono::milliseconds timeout_;
  Trace* trace_;
};

}  // namespace

GroupState::GroupState(std::vector<int> members, std::vector<TaskThread*> threads,
                       FlightRecords records, std::string name)
    : members_(std::move(members)),
      threads_(std::move(threads)),
      records_(std::move(records)),
      flight_group_(std::make_shared<FlightGroup>(std::move(name), members_)) {
  for (size_t i = 0; i < members_.size(); ++i) all_.ranks.push_back(static_cast<int>(i));
  all_.next.resize(members_.size());
  num_copies_.resize(members_.size());
}

std::string GroupState::Name(const Operation& operation, const CollectiveCall& call) const {
  return Fingerprint(call).ToString() + " #" + std::to_string(operation.sequence) + " of group " +
         FormatRanks(members_);
}

void GroupState::Note(int rank, const CollectiveCall& call, const Channel& channel,
                      Operation& operation) {
  const bool pair = &channel != &all_;
  const auto world_rank = [&](size_t i) {
    return pair ? members_[static_cast<size_t>(channel.ranks[i])] : -1;
  };
  const uint64_t id = record(rank)->Call({.group = flight_group_,
                                          .sender = world_rank(0),
                                          .receiver = world_rank(1),
                                          .sequence = operation.sequence,
                                          .fingerprint = Fingerprint(call)});
  operation.notes.emplace_back(record(rank), id);
}

GroupState::Channel& GroupState::ChannelFor(int rank, const CollectiveCall& call,
                                            size_t& position) {
  if (call.kind != CollectiveKind::kSend && call.kind != CollectiveKind::kRecv) {
    position = static_cast<size_t>(rank);
    return all_;
  }
  const bool send = call.kind == CollectiveKind::kSend;
  position = send ? 0 : 1;
  const std::pair<int, int> key = send ? std::pair(rank, call.root) : std::pair(call.root, rank);
  Channel& channel = pairs_[key];
  if (channel.ranks.empty()) {
    channel.next.resize(2);
    channel.ranks = {key.first, key.second};
  }
  return channel;
}

std::shared_ptr<Operation> GroupState::Arrive(int rank, CollectiveCall call) {
  std::shared_ptr<Operation> operation;
  std::vector<int> ranks;
  {
    std::lock_guard lock(mutex_);
    size_t position = 0;
    Channel& channel = ChannelFor(rank, call, position);
    ranks = channel.ranks;
    const int64_t sequence = channel.next[position];
    // Memory that runs out leaves no null operation behind for the ranks that wait.
    if (const auto it = channel.pending.find(sequence); it != channel.pending.end()) {
      operation = it->second;
    } else {
      operation = std::make_shared<Operation>(sequence, ranks.size());
      channel.pending.emplace(sequence, operation);
    }
    ++channel.next[position];
    Note(rank, call, channel, *operation);
    const std::string who = "rank " + std::to_string(members_[static_cast<size_t>(rank)]);
    if (!broken_.empty()) {
      FailLocked(channel, operation,
                 Name(*operation, call) + ": this group failed before: " + broken_);
      return operation;
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (!operation->arrived[i]) continue;
      if (!Fingerprint(call).Matches(Fingerprint(operation->calls[i]))) {
        FailLocked(channel, operation,
                   "ranks disagree on collective #" + std::to_string(sequence) +
                       " of group: " + who + " called " + Fingerprint(call).ToString() +
                       " where rank " + std::to_string(members_[static_cast<size_t>(ranks[i])]) +
                       " called " + Name(*operation, operation->calls[i]) +
                       "; all members must call the same collectives in the same order");
        return operation;
      }
      break;
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto gone = gone_.find(ranks[i]);
      if (gone == gone_.end() || operation->arrived[i]) continue;
      FailLocked(channel, operation,
                 Name(*operation, call) + ": rank " +
                     std::to_string(members_[static_cast<size_t>(ranks[i])]) + " " + gone->second);
      return operation;
    }
    operation->calls[position] = std::move(call);
    operation->arrived[position] = true;
    if (++operation->num_arrived < ranks.size()) return operation;
    channel.pending.erase(sequence);
  }
  Execute(operation, ranks);
  return operation;
}

void GroupState::Execute(const std::shared_ptr<Operation>& operation,
                         const std::vector<int>& ranks) {
  {
    std::lock_guard lock(operation->mutex);
    operation->shares_left = static_cast<int>(ranks.size());
    for (const auto& [record, id] : operation->notes) record->SetMoving(id);
  }
  const bool at_once = BytesMoved(*operation) <= kInlineBytes;
  for (size_t i = 0; i < ranks.size(); ++i) {
    auto share = [operation, i] {
      try {
        const TraceSpan span = TraceCall(operation->calls[i]);
        RunShare(*operation, i);
      } catch (...) {
        const std::exception_ptr thrown = std::current_exception();
        RetryOutOfMemory([&] { operation->Fail(FailureOf(thrown).message); });
      }
      operation->FinishShare();
    };
    if (at_once) {
      share();
      continue;
    }
    try {
      threads_[static_cast<size_t>(ranks[i])]->Post(share);
    } catch (const std::bad_alloc&) {
      share();  // or all ranks would wait for it
    }
  }
}

std::string GroupState::WorldRanks(const std::vector<int>& ranks) const {
  std::string text;
  for (const int rank : ranks) {
    if (!text.empty()) text += ", ";
    text += std::to_string(members_[static_cast<size_t>(rank)]);
  }
  return text;
}

std::vector<int> GroupState::Missing(const Channel& channel, const Operation& operation) const {
  std::vector<int> missing;
  for (size_t i = 0; i < channel.ranks.size(); ++i) {
    if (!operation.arrived[i]) missing.push_back(members_[static_cast<size_t>(channel.ranks[i])]);
  }
  return missing;
}

void GroupState::FailLocked(Channel& channel, const std::shared_ptr<Operation>& operation,
                            const std::string& message) {
  if (broken_.empty()) broken_ = message;
  operation->Fail(message, Missing(channel, *operation));
  channel.pending.erase(operation->sequence);
  // From here on the members are out of step: other waiting calls would never complete. Each is
  // forgotten once it has failed, so that an attempt that finds no memory can be repeated.
  auto fail_all = [&](Channel& other) {
    while (!other.pending.empty()) {
      const auto waiting = other.pending.begin();
      waiting->second->Fail("this group failed: " + broken_, Missing(other, *waiting->second));
      other.pending.erase(waiting);
    }
  };
  fail_all(all_);
  for (auto& [key, pair] : pairs_) fail_all(pair);
}

void GroupState::TimeOut(const std::shared_ptr<Operation>& operation,
                         std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex_);
  auto check = [&](Channel& channel) {
    const auto it = channel.pending.find(operation->sequence);
    if (it == channel.pending.end() || it->second != operation) return;
    std::vector<int> missing, present;
    const CollectiveCall* call = nullptr;
    for (size_t i = 0; i < channel.ranks.size(); ++i) {
      (operation->arrived[i] ? present : missing).push_back(channel.ranks[i]);
      if (operation->arrived[i]) call = &operation->calls[i];
    }
    // Members that wait in another operation are also waiting for the culprit.
    const auto waits = [&](int rank) { return record(rank)->is_waiting(); };
    if (!std::ranges::all_of(missing, waits)) std::erase_if(missing, waits);
    for (const int rank : missing) record(rank)->SetWaitedFor();
    FailLocked(channel, operation,
               Name(*operation, *call) + ": rank " + WorldRanks(missing) +
                   " did not arrive within " +
                   std::to_string(timeout.count() / 1000.0).substr(0, 5) + " s; waiting: rank " +
                   WorldRanks(present));
  };
  check(all_);
  for (auto& [key, pair] : pairs_) check(pair);
}

void GroupState::Leave(int rank, const std::string& reason) {
  std::lock_guard lock(mutex_);
  gone_.insert_or_assign(rank, reason);
  auto check = [&](Channel& channel) {
    for (auto& [sequence, operation] : channel.pending) {
      for (size_t i = 0; i < channel.ranks.size(); ++i) {
        if (channel.ranks[i] != rank || operation->arrived[i]) continue;
        const size_t other = static_cast<size_t>(
            std::find(operation->arrived.begin(), operation->arrived.end(), true) -
            operation->arrived.begin());
        // The rank found no memory to arrive, and was the first: the next one to arrive is told.
        if (other == operation->arrived.size()) continue;
        const std::shared_ptr<Operation> failed = operation;
        FailLocked(channel, failed,
                   Name(*failed, failed->calls[other]) + ": rank " +
                       std::to_string(members_[static_cast<size_t>(rank)]) + " " + reason);
        return;
      }
    }
  };
  check(all_);
  for (auto& [key, pair] : pairs_) check(pair);
  for (auto& [index, copy] : copies_) copy->Leave(rank, reason);
}

std::shared_ptr<GroupState> GroupState::Copy(int rank) {
  std::lock_guard lock(mutex_);
  const int number = num_copies_[static_cast<size_t>(rank)]++;
  std::shared_ptr<GroupState>& copy = copies_[number];
  if (copy == nullptr) {
    copy = std::make_shared<GroupState>(members_, threads_, records_,
                                        name() + " copy " + std::to_string(number + 1));
    for (const auto& [rank, reason] : gone_) copy->Leave(rank, reason);
  }
  return copy;
}

LocalWorld::LocalWorld(FlightRecords records, std::chrono::milliseconds timeout, Trace* trace)
    : timeout_(timeout), trace_(trace), records_(std::move(records)) {
  for (size_t i = 0; i < records_.size(); ++i) threads_.push_back(std::make_unique<TaskThread>());
}

GroupPtr LocalWorld::MakeGroup(int rank, const std::vector<int>& members) {
  const int place = PlaceAmong(members, rank, size());
  std::vector<TaskThread*> threads;
  FlightRecords records;
  for (const int member : members) {
    threads.push_back(threads_[static_cast<size_t>(member)].get());
    records.push_back(records_[static_cast<size_t>(member)]);
  }
  std::shared_ptr<GroupState> state;
  {
    std::lock_guard lock(mutex_);
    std::shared_ptr<GroupState>& entry = groups_[members];
    if (entry == nullptr) {
      entry = std::make_shared<GroupState>(members, threads, records, FormatRanks(members));
      for (const auto& [gone, reason] : gone_) {
        const auto position = std::find(members.begin(), members.end(), gone);
        if (position != members.end())
          entry->Leave(static_cast<int>(position - members.begin()), reason);
      }
    }
    state = entry;
  }
  return std::make_shared<LocalGroup>(place, state, timeout_, trace_);
}

void LocalWorld::Leave(int rank, const std::string& reason) {
  std::lock_guard lock(mutex_);
  gone_.insert_or_assign(rank, reason);
  for (auto& [members, state] : groups_) {
    const auto position = std::find(members.begin(), members.end(), rank);
    if (position != members.end())
      state->Leave(static_cast<int>(position - members.begin()), reason);
  }
}

}  // namespace apogee::comm::local
