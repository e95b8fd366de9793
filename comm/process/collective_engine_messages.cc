// SPDX-License-Identifier: Apache-2.0

// The messages that the engines of the processes send each other.
#include <algorithm>

#include "apogee/comm/process/collective_engine.h"

namespace apogee::comm::process {
namespace {

constexpr std::chrono::milliseconds kAskEvery(200);

}  // namespace

void CollectiveEngine::PostToAll(const Message& message) {
  const std::string bytes = Encode(message);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) transport_->Post(r, bytes);
  }
}

// Pings the `awaited` processes, and adds those that have been silent for kSilence to `lost`.
bool CollectiveEngine::AskSilent(uint32_t session, const std::set<int>& awaited,
                                 std::set<int>& lost) {
  const auto now = Clock::now();
  const bool ask = now - asked_ > kAskEvery;
  if (ask) asked_ = now;
  for (const int r : awaited) {
    if (ask) transport_->Post(r, Encode({.kind = MessageKind::kPing, .session = session}));
    if (now - heard_[static_cast<size_t>(r)] > kSilence) lost.insert(r);
  }
  return !lost.empty();
}

void CollectiveEngine::Handle(int from, Message message) {
  if (message.kind == MessageKind::kExit) {
    exiting_.insert(from);
    return;
  }
  Session& session = sessions_[message.session];
  if (message.kind == MessageKind::kPing) {
    // A process that has not begun the session has been idle since its last one.
    const bool begun = session.record != nullptr;
    const auto idle = now_ - (begun ? session.record->active_at() : idle_since_);
    int64_t ms =
        std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(idle).count());
    if (begun && session.record->is_waiting()) ms = -1;
    return transport_->Post(
        from, Encode({.kind = MessageKind::kPong,
                      .session = message.session,
                      .tag = static_cast<int32_t>(std::min<int64_t>(ms, INT32_MAX))}));
  }
  if (session.ended) return;  // too late to matter
  switch (message.kind) {
    case MessageKind::kPong:
      session.active[from] = now_ - std::chrono::milliseconds(std::max(0, message.tag));
      if (message.tag < 0) session.waiting[from] = Clock::now();
      return;
    case MessageKind::kAwaited:
      session.awaited.insert(message.tag);
      return;
    case MessageKind::kCall:
      session.active[from] = now_;
      for (const OperationPtr& operation : session.pending) {
        if (operation->channel == message.channel && operation->sequence == message.sequence) {
          const OperationPtr kept = operation;
          return Arrive(kept, from, std::move(message));
        }
      }
      session.early[{message.channel, message.sequence}].emplace_back(from, std::move(message));
      return;
    case MessageKind::kFailed:
      return FailGroup(message.session, message.channel, message.sequence, message.text);
    case MessageKind::kGivenUp:
      return GivenUp(message.session, from, message.text);
    case MessageKind::kLeft:
      return Left(message.session, from, {.ending = message.ending, .text = message.text});
    default:
      return;
  }
}

}  // namespace apogee::comm::process
