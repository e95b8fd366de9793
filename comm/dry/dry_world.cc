// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/dry/dry_world.h"

#include <algorithm>

#include "apogee/comm/fingerprint.h"
#include "apogee/comm/members.h"

namespace apogee::comm::dry {
namespace {

// No rank computes, so a rank that does not arrive in this time never will.
constexpr std::chrono::seconds kPatience(60);

class DryWork : public Work {
 public:
  DryWork(DryWorld& world, std::shared_ptr<GroupState> state, int rank,
          std::shared_ptr<Operation> operation)
      : world_(world), state_(std::move(state)), rank_(rank), operation_(std::move(operation)) {}
  void Wait() override { world_.Wait(*state_, rank_, *operation_); }
  bool WaitFor(std::chrono::milliseconds limit) override {
    return world_.WaitFor(*state_, rank_, *operation_, limit);
  }
  bool IsDone() override { return world_.IsDone(*state_, rank_, *operation_); }

 private:
  DryWorld& world_;
  std::shared_ptr<GroupState> state_;
  int rank_;
  std::shared_ptr<Operation> operation_;
};

class DryGroup : public Group {
 public:
  DryGroup(DryWorld& world, int rank, std::shared_ptr<GroupState> state)
      : Group(rank, state->members), world_(world), state_(std::move(state)) {}

  GroupPtr Duplicate(std::chrono::milliseconds) override {
    return std::make_shared<DryGroup>(world_, rank(), world_.Copy(*state_, rank()));
  }

 private:
  std::shared_ptr<Work> Submit(CollectiveCall call) override {
    world_.Tell(world_ranks()[static_cast<size_t>(rank())], call);
    return std::make_shared<DryWork>(world_, state_, rank(),
                                     world_.Arrive(*state_, rank(), std::move(call)));
  }

  DryWorld& world_;
  std::shared_ptr<GroupState> state_;
};

bool IsPair(const CollectiveCall& call) {
  return call.kind == CollectiveKind::kSend || call.kind == CollectiveKind::kRecv;
}

}  // namespace

DryWorld::DryWorld(DryOptions options) : options_(std::move(options)) {}

std::shared_ptr<GroupState> DryWorld::MakeState(const std::vector<int>& members) const {
  auto state = std::make_shared<GroupState>();
  state->members = members;
  std::map<int, int> place;  // of the members that run
  for (size_t i = 0; i < members.size(); ++i) {
    if (std::ranges::binary_search(options_.ranks, members[i])) {
      state->running.push_back(static_cast<int>(i));
      place.emplace(members[i], static_cast<int>(i));
    }
  }
  for (const int member : members) {
    auto found = place.find(member);
    if (found == place.end() && options_.stand_in) found = place.find(options_.stand_in(member));
    state->behind.push_back(found == place.end() ? state->running[0] : found->second);
  }
  return state;
}

GroupPtr DryWorld::MakeGroup(int rank, const std::vector<int>& members) {
  const int place = PlaceAmong(members, rank, options_.num_ranks);
  std::lock_guard lock(mutex_);
  std::shared_ptr<GroupState>& state = groups_[members];
  if (state == nullptr) state = MakeState(members);
  return std::make_shared<DryGroup>(*this, place, state);
}

std::shared_ptr<GroupState> DryWorld::Copy(GroupState& state, int rank) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<GroupState>& copy = state.copies[state.num_copies[rank]++];
  if (copy == nullptr) copy = MakeState(state.members);
  return copy;
}

void DryWorld::Finish(Operation& operation, const std::string& error) {
  operation.calls.clear();
  operation.error = error;
  operation.done = true;
  operation.finished.notify_all();
}

std::shared_ptr<Operation> DryWorld::Arrive(GroupState& state, int rank, CollectiveCall call) {
  std::lock_guard lock(mutex_);
  GroupState::Channel* channel = &state.all;
  std::vector<int> pair;  // sender and receiver
  if (IsPair(call)) {
    const bool sends = call.kind == CollectiveKind::kSend;
    pair = sends ? std::vector{rank, call.root} : std::vector{call.root, rank};
    channel = &state.pairs[{pair[0], pair[1]}];
  }
  const int64_t number = channel->next[rank]++;
  std::shared_ptr<Operation>& pending = channel->pending[number];
  if (pending == nullptr) {
    pending = std::make_shared<Operation>();
    pending->ranks = pair.empty() ? state.running : pair;
    std::erase_if(pending->ranks,
                  [&](int member) { return state.behind[static_cast<size_t>(member)] != member; });
    pending->calls.resize(pending->ranks.size());
    pending->arrived.resize(pending->ranks.size());
  }
  const std::shared_ptr<Operation> mine = pending;
  if (const auto other = std::ranges::find(mine->arrived, true); other != mine->arrived.end()) {
    const auto place = static_cast<size_t>(other - mine->arrived.begin());
    const Fingerprint theirs(mine->calls[place]);
    if (!Fingerprint(call).Matches(theirs)) {
      const auto world_rank = [&](int member) {
        return state.members[static_cast<size_t>(member)];
      };
      Finish(*mine,
             internal::Concat("ranks disagree on collective #", number, ": rank ", world_rank(rank),
                              " called ", Fingerprint(call).ToString(), " where rank ",
                              world_rank(mine->ranks[place]), " called ", theirs.ToString(),
                              "; all members must call the same collectives in the same "
                              "order"));
    }
  }
  if (mine->done) return mine;
  const CollectiveCost cost = Price(state, rank, call, pair, *mine);
  const auto place =
      static_cast<size_t>(std::ranges::find(mine->ranks, rank) - mine->ranks.begin());
  mine->calls[place] = std::move(call);
  mine->arrived[place] = true;
  if (++mine->num_arrived < mine->ranks.size()) {
    if (!gone_.empty()) FailAll(state);
    return mine;
  }
  channel->pending.erase(number);
  mine->end = cost.overlaps ? std::max(mine->begin, channel->free_at) + cost.seconds : mine->begin;
  channel->free_at = mine->end;
  Move(state, *mine, pair);
  Finish(*mine, "");
  return mine;
}

void DryWorld::Move(const GroupState& state, const Operation& operation,
                    const std::vector<int>& pair) {
  if (!Moves(operation.calls[0])) return;
  const auto call_of = [&](int member) {
    const auto found = std::ranges::find(operation.ranks, member);
    return operation.calls[static_cast<size_t>(found - operation.ranks.begin())];
  };
  if (!pair.empty()) {
    // If one end does not run, there is nothing to move.
    if (operation.ranks.size() == 2) MoveSmall({call_of(pair[0]), call_of(pair[1])}, {0, 1});
    return;
  }
  std::vector<CollectiveCall> calls;
  for (const int member : state.behind) calls.push_back(call_of(member));
  MoveSmall(calls, operation.ranks);
}

void DryWorld::Wait(const GroupState& state, int rank, Operation& operation) {
  std::unique_lock lock(mutex_);
  if (!operation.finished.wait_for(lock, kPatience, [&] { return operation.done; })) {
    std::string missing;
    for (size_t place = 0; place < operation.ranks.size(); ++place) {
      if (operation.arrived[place]) continue;
      const int rank = state.members[static_cast<size_t>(operation.ranks[place])];
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
    Finish(operation, internal::Concat("group ", FormatRanks(state.members), ": rank ", missing,
                                       " does not call the collective that others wait for"));
  }
  if (!operation.error.empty()) throw CommError(operation.error);
  WaitInTime(state, rank, operation);
}

bool DryWorld::WaitFor(const GroupState& state, int rank, Operation& operation,
                       std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (!operation.finished.wait_for(lock, limit, [&] { return operation.done; })) return false;
  lock.unlock();
  Wait(state, rank, operation);
  return true;
}

bool DryWorld::IsDone(const GroupState& state, int rank, const Operation& operation) {
  std::lock_guard lock(mutex_);
  if (!operation.done || options_.clock == nullptr) return operation.done;
  return operation.end <= options_.clock->Now(state.members[static_cast<size_t>(rank)]);
}

void DryWorld::FailWithout(const GroupState& state, GroupState::Channel& channel) {
  for (auto& [number, operation] : channel.pending) {
    for (size_t place = 0; place < operation->ranks.size() && !operation->done; ++place) {
      const auto gone = gone_.find(state.members[static_cast<size_t>(operation->ranks[place])]);
      if (gone == gone_.end() || operation->arrived[place]) continue;
      Finish(*operation, internal::Concat("rank ", gone->first, " ", gone->second));
    }
  }
  std::erase_if(channel.pending, [](const auto& entry) { return entry.second->done; });
}

void DryWorld::FailAll(GroupState& state) {
  FailWithout(state, state.all);
  for (auto& [pair, channel] : state.pairs) FailWithout(state, channel);
  for (auto& [number, copy] : state.copies) FailAll(*copy);
}

void DryWorld::Leave(int rank, const std::string& reason) {
  std::lock_guard lock(mutex_);
  gone_.insert_or_assign(rank, reason);
  for (auto& [members, state] : groups_) FailAll(*state);
}

}  // namespace apogee::comm::dry
