// SPDX-License-Identifier: Apache-2.0

// The engine's operations: announcing, comparing, exchanging, finishing.
#include <algorithm>

#include "apogee/comm/process/collective_engine.h"

namespace apogee::comm::process {
namespace {

// How long members that are missing after a timeout have to answer that they wait elsewhere.
constexpr std::chrono::milliseconds kAnswerWithin(100);

std::string RankName(const Operation& operation, size_t place) {
  return "rank " + std::to_string(operation.ranks[place]);
}

void Append(std::string& list, int rank) {
  list += (list.empty() ? "" : ", ") + std::to_string(rank);
}

std::string Reason(const RankEnding& ending) {
  if (ending.lost) return ending.text;
  return ending.ending == Ending::kReturned ? "returned before this collective"
                                            : "failed: " + ending.text;
}

}  // namespace

void CollectiveEngine::Call(std::shared_ptr<Operation> operation) {
  const bool blocking = operation->call.blocking;
  std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn) return Command([this, operation = std::move(operation)] { Announce(operation); });
  RunCommands();  // calls that this thread made before
  try {
    Announce(operation);
  } catch (const Error& error) {
    BreakDown(error.what());
  }
  NoteWhetherBusy();
  // A blocking caller drives the operation itself.
  if (!blocking) Wake();
}

void CollectiveEngine::TimeOut(std::shared_ptr<Operation> operation,
                               std::chrono::milliseconds timeout) {
  Command([this, operation = std::move(operation), timeout] { TimedOut(operation, timeout); });
}

void CollectiveEngine::Announce(const OperationPtr& operation) {
  Session& session = sessions_[operation->session];
  const Fingerprint mine(operation->call);
  operation->members.resize(operation->ranks.size());
  operation->in_flight.resize(operation->ranks.size());
  operation->last_progress = Clock::now();
  auto early = session.early.extract({operation->channel, operation->sequence});
  const auto refuse = [&](const std::string& why) {
    Finish(operation, operation->Name() + ": " + why);
  };
  if (!broken_.empty()) return refuse(broken_);
  if (session.ended) return refuse("the launched function has ended");
  const auto failed = session.failed_groups.find(operation->channel.group);
  if (failed != session.failed_groups.end()) {
    return refuse("this group failed before: " + failed->second);
  }

  Operation::Member& self = operation->members[operation->self];
  self.arrived = true;
  self.fingerprint = mine;
  self.tag = next_tag_;
  next_tag_ = next_tag_ + 2 < transport_->max_tag() ? next_tag_ + 2 : 1;  // two tags: one per phase
  const size_t size = operation->ranks.size();
  const auto data_for = [&](size_t peer) {
    if (operation->start) return operation->announced;
    return SmallData(operation->call, operation->self, peer, size).value_or("");
  };
  self.data = data_for(operation->self);
  Message message{.kind = MessageKind::kCall,
                  .session = operation->session,
                  .channel = operation->channel,
                  .sequence = operation->sequence,
                  .fingerprint = mine,
                  .tag = self.tag};
  for (size_t step = 1; step < size; ++step) {
    const size_t peer = (operation->self + step) % size;
    message.text = data_for(peer);
    transport_->Post(operation->ranks[peer], Encode(message));
  }
  session.pending.push_back(operation);
  if (!early.empty()) {
    for (auto& [from, call] : early.mapped()) {
      Arrive(operation, from, std::move(call));
      if (operation->failed) return;
    }
  }
  for (size_t i = 0; i < size; ++i) {
    const auto gone = session.endings.find(operation->ranks[i]);
    if (gone == session.endings.end() || operation->members[i].arrived) continue;
    return Fail(operation,
                operation->Name() + ": " + RankName(*operation, i) + " " + Reason(gone->second));
  }
}

void CollectiveEngine::Arrive(const OperationPtr& operation, int from, Message message) {
  const auto at = std::find(operation->ranks.begin(), operation->ranks.end(), from);
  if (at == operation->ranks.end()) return;
  const auto place = static_cast<size_t>(at - operation->ranks.begin());
  const Fingerprint& mine = operation->members[operation->self].fingerprint;
  if (!message.fingerprint.Matches(mine)) {
    return Fail(operation, "ranks disagree on collective #" + std::to_string(message.sequence) +
                               " of group: " + RankName(*operation, place) + " called " +
                               message.fingerprint.ToString() + " where " +
                               RankName(*operation, operation->self) + " called " +
                               operation->Name() +
                               "; all members must call the same collectives in the same order");
  }
  if (message.fingerprint.on_gpu != mine.on_gpu) {
    const auto kind = [](bool on_gpu) { return on_gpu ? "on a GPU" : "on the host"; };
    return Fail(operation, operation->Name() + ": the tensor of " + RankName(*operation, place) +
                               " is " + kind(message.fingerprint.on_gpu) + ", that of " +
                               RankName(*operation, operation->self) + " " + kind(mine.on_gpu) +
                               "; all must be on GPUs, or all on the host");
  }
  operation->members[place] = {.arrived = true,
                               .fingerprint = message.fingerprint,
                               .tag = message.tag,
                               .data = std::move(message.text)};
  for (const Operation::Member& member : operation->members) {
    if (!member.arrived) return;
  }
  Execute(operation);
}

void CollectiveEngine::Execute(const OperationPtr& operation) {
  const size_t size = operation->ranks.size(), self = operation->self;
  const bool is_small = !operation->start && SmallData(operation->call, self, self, size);
  const auto& endings = sessions_[operation->session].endings;
  for (size_t i = 0; i < size && !is_small; ++i) {
    const auto ending = endings.find(operation->ranks[i]);
    if (ending == endings.end() || !ending->second.lost) continue;
    // It has announced the call, but can no longer send or receive data.
    return Fail(operation,
                operation->Name() + ": " + RankName(*operation, i) + " " + Reason(ending->second));
  }
  operation->exchanging = true;
  operation->record->SetMoving(operation->record_id);
  operation->last_progress = Clock::now();
  if (operation->start) {
    return Move(operation, [&] { operation->start(operation->members[0].data); });
  }
  operation->span.reset(new TraceSpan(TraceCall(operation->call)));
  Move(operation, [&] {
    if (is_small) {
      FinishSmall(*operation);
    } else {
      StartExchange(*operation, *this);
    }
  });
}

void CollectiveEngine::Move(const OperationPtr& operation, const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return Fail(operation, error.what());
  }
  if (operation->num_in_flight == 0) Finish(operation, "");
}

uint64_t CollectiveEngine::AddFlight(Operation& operation, size_t peer,
                                     std::function<void()> then) {
  ++operation.in_flight[peer];
  ++operation.num_in_flight;
  flights_[next_id_] = {operation.shared_from_this(), peer, std::move(then)};
  return next_id_++;
}

void CollectiveEngine::Send(Operation& operation, size_t peer, int tag, const void* data,
                            int64_t bytes, std::function<void()> then) {
  const uint64_t id = AddFlight(operation, peer, std::move(then));
  transport_->Send(operation.ranks[peer], tag, data, bytes, id);
}

void CollectiveEngine::Receive(Operation& operation, size_t peer, int tag, void* data,
                               int64_t bytes, std::function<void()> then) {
  const uint64_t id = AddFlight(operation, peer, std::move(then));
  transport_->Receive(operation.ranks[peer], tag, data, bytes, id);
}

void CollectiveEngine::Land(uint64_t id) {
  const auto entry = flights_.extract(id);
  const Flight& flight = entry.mapped();
  Operation& operation = *flight.operation;
  --operation.in_flight[flight.peer];
  --operation.num_in_flight;
  operation.last_progress = now_;
  operation.asked_at = {};
  if (!operation.failed) return Move(flight.operation, flight.then);
  if (operation.num_in_flight == 0) Drop(operation);
}

// When the caller is told, no tensor may stay alive on a thread that has yet to drop it.
void CollectiveEngine::Drop(Operation& operation) {
  operation.exchange.reset();
  operation.start = {};
  operation.call = {};
}

void CollectiveEngine::Finish(const OperationPtr& operation, const std::string& error) {
  std::erase(sessions_[operation->session].pending, operation);
  operation->failed = !error.empty();
  operation->span.reset();
  std::vector<int> missing;
  for (size_t i = 0; !error.empty() && i < operation->members.size(); ++i) {
    if (!operation->members[i].arrived) missing.push_back(operation->ranks[i]);
  }
  operation->record->Finish(operation->record_id, error, missing);
  // Transfers of a failed exchange that are still running keep their memory until they complete.
  if (operation->num_in_flight == 0) Drop(*operation);
  operation->completion->Finish(error);
}

void CollectiveEngine::Fail(const OperationPtr& operation, const std::string& message) {
  // A copy, because FailGroup may drop the list entry that `operation` refers to.
  const OperationPtr kept = operation;
  FailGroup(kept->session, kept->channel, kept->sequence, message);
  const std::string failed = Encode({.kind = MessageKind::kFailed,
                                     .session = kept->session,
                                     .channel = kept->channel,
                                     .sequence = kept->sequence,
                                     .text = message});
  for (const int member : kept->group_ranks) {
    if (member != rank_) transport_->Post(member, failed);
  }
}

void CollectiveEngine::FailOnDevice(uint32_t number, const Channel& channel,
                                    const std::vector<int>& ranks, const std::string& why) {
  Command([this, number, channel, ranks, why] {
    FailGroup(number, channel, kOnDevice, why);
    const std::string failed = Encode({.kind = MessageKind::kFailed,
                                       .session = number,
                                       .channel = channel,
                                       .sequence = kOnDevice,
                                       .text = why});
    for (const int rank : ranks) {
      if (rank != rank_) transport_->Post(rank, failed);
    }
  });
}

// From here on the members are out of step: other waiting calls of the group would never complete.
void CollectiveEngine::FailGroup(uint32_t number, const Channel& channel, int64_t sequence,
                                 const std::string& message) {
  Session& session = sessions_[number];
  if (session.ended) return;  // too late to matter
  const bool first = session.failed_groups.try_emplace(channel.group, message).second;
  if (sequence == kOnDevice && session.on_device_failure) {
    session.on_device_failure(channel.group, message);
  }
  // Written now, because this process may not live to see the end of the launch.
  if (first && session.record != nullptr) session.record->WriteWithin({});
  const std::vector<OperationPtr> pending = session.pending;
  for (const OperationPtr& operation : pending) {
    if (operation->channel.group != channel.group) continue;
    const bool same = operation->channel == channel && operation->sequence == sequence;
    if (operation->exchanging && !same) continue;  // all members have arrived: it will complete
    Finish(operation, same ? message : "this group failed: " + message);
  }
}

// Of the missing members, those at fault: members that do not themselves wait for another one.
std::vector<int> CollectiveEngine::Culprits(const Operation& operation,
                                            const std::vector<int>& suspects) const {
  const Session& session = sessions_.at(operation.session);
  std::vector<int> culprits;
  for (const int rank : suspects) {
    const auto waiting = session.waiting.find(rank);
    if (waiting == session.waiting.end() || waiting->second < operation.asked_at) {
      culprits.push_back(rank);
    }
  }
  return culprits.empty() ? suspects : culprits;
}

void CollectiveEngine::TimedOut(const OperationPtr& operation, std::chrono::milliseconds timeout) {
  if (operation->completion->IsDone()) return;
  const auto now = Clock::now();
  std::string present;
  std::vector<int> missing, silent;
  for (size_t i = 0; i < operation->ranks.size(); ++i) {
    if (!operation->members[i].arrived) missing.push_back(operation->ranks[i]);
    if (operation->members[i].arrived) Append(present, operation->ranks[i]);
    if (operation->in_flight[i] > 0) silent.push_back(operation->ranks[i]);
  }
  if (missing.empty() && now - operation->last_progress < timeout) return;
  const std::vector<int>& suspects = missing.empty() ? silent : missing;
  if (suspects.size() > 1) {
    if (operation->asked_at == Clock::time_point{}) {
      operation->asked_at = now;
      for (const int rank : suspects) {
        transport_->Post(rank, Encode({.kind = MessageKind::kPing, .session = operation->session}));
      }
    }
    if (now - operation->asked_at < kAnswerWithin) return;
  }
  std::string named;
  for (const int rank : Culprits(*operation, suspects)) {
    Append(named, rank);
    sessions_[operation->session].awaited.insert(rank);
    PostToAll({.kind = MessageKind::kAwaited, .session = operation->session, .tag = rank});
  }
  const std::string seconds = std::to_string(timeout.count() / 1000.0).substr(0, 5) + " s";
  if (missing.empty()) {
    return Fail(operation, operation->Name() + ": no data has moved between rank " +
                               std::to_string(rank_) + " and rank " + named + " for " + seconds);
  }
  Fail(operation, operation->Name() + ": rank " + named + " did not arrive within " + seconds +
                      "; waiting: rank " + present);
}

void CollectiveEngine::Left(uint32_t number, int rank, const RankEnding& ending) {
  Session& session = sessions_[number];
  if (!session.endings.try_emplace(rank, ending).second) return;
  if (ending.ending != Ending::kReturned && session.failed_at == Clock::time_point{}) {
    session.failed_at = Clock::now();
  }
  const std::vector<OperationPtr> pending = session.pending;
  for (const OperationPtr& operation : pending) {
    for (size_t i = 0; i < operation->ranks.size() && !operation->failed; ++i) {
      if (operation->ranks[i] != rank) continue;
      if (operation->members[i].arrived && !(ending.lost && operation->exchanging)) continue;
      Fail(operation, operation->Name() + ": " + RankName(*operation, i) + " " + Reason(ending));
    }
  }
}

}  // namespace apogee::comm::process
