// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/pipeline/inbox.h"

#include <utility>

namespace apogee::pipeline {

Inbox::Inbox(const PipelineShape& shape, const PipelineSchedule& schedule, int stage,
             comm::GroupPtr group, BufferFor buffer_for)
    : group_(std::move(group)), buffer_for_(std::move(buffer_for)) {
  for (int from = 0; from < shape.num_stages; ++from) {
    if (from == stage) continue;
    for (const PipelineOp& op : schedule[static_cast<size_t>(from)]) {
      const bool forward = op.kind == PipelineOp::Kind::kForward;
      if (op.kind == PipelineOp::Kind::kWeights) continue;
      const int to = shape.PartOf(from, op.chunk) + (forward ? 1 : -1);
      if (to < 0 || to == shape.num_parts() || shape.StageOf(to) != stage) continue;
      const Message message{.part = to, .micro = op.micro, .is_gradient = !forward};
      sender_[message] = from;
      queues_[from].push_back(message);
    }
  }
}

void Inbox::Receive(const Message& message, bool may_wait) {
  const int from = sender_.at(message);
  std::deque<Message>& queue = queues_.at(from);
  while (!arriving_.contains(message) && !queue.empty()) {
    const Tensor buffer = buffer_for_(queue.front(), from, may_wait);
    if (!buffer.defined()) return;
    arriving_[queue.front()] = {buffer, group_->RecvAsync(buffer, from)};
    queue.pop_front();
  }
}

Tensor Inbox::Take(const Message& message) {
  Receive(message, /*may_wait=*/true);
  const Arriving arrived = arriving_.extract(message).mapped();
  arrived.work->Wait();
  return arrived.buffer;
}

}  // namespace apogee::pipeline
