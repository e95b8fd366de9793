// SPDX-License-Identifier: Apache-2.0

// Inbox: receives a stage's messages from other stages while a schedule runs. Private to
// plugins/pipeline.
//
//   Inbox inbox(shape, schedule, stage, group, buffer_for);
//   inbox.Expect({.part = 3, .micro = 0});           // early: it arrives while this stage computes
//   Tensor x = inbox.Take({.part = 3, .micro = 0});
//
// Messages between two ranks are matched in order. So the inbox receives them in the order in which
// the peer's schedule sends them, even if this stage needs another one first.
#ifndef APOGEE_PLUGINS_PIPELINE_INBOX_H_
#define APOGEE_PLUGINS_PIPELINE_INBOX_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "apogee/comm/group.h"
#include "apogee/plugins/pipeline/schedule.h"

namespace apogee::pipeline {

// The input of a part's forward, or the gradient of its output.
struct Message {
  int part = 0;
  int micro = 0;
  bool is_gradient = false;
  auto operator<=>(const Message&) const = default;
};

class Inbox {
 public:
  // Returns the buffer for a message. If `may_wait` is false and the message's shape is not known
  // yet: undefined.
  using BufferFor = std::function<Tensor(const Message&, int from, bool may_wait)>;

  Inbox(const PipelineShape& shape, const PipelineSchedule& schedule, int stage,
        comm::GroupPtr group, BufferFor buffer_for);

  // Whether the message comes from another stage.
  bool ComesFromElsewhere(const Message& message) const { return sender_.contains(message); }
  // Starts to receive the message if that needs no waiting.
  void Expect(const Message& message) { Receive(message, false); }
  // Waits for the message.
  Tensor Take(const Message& message);

 private:
  struct Arriving {
    Tensor buffer;
    std::shared_ptr<comm::Work> work;
  };

  void Receive(const Message& message, bool may_wait);

  comm::GroupPtr group_;
  BufferFor buffer_for_;
  std::map<Message, int> sender_;              // the stage that sends a message
  std::map<int, std::deque<Message>> queues_;  // by sender: not received yet
  std::map<Message, Arriving> arriving_;
};

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_INBOX_H_
