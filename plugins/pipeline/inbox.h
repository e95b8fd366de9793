// SPDX-License-Identifier: Apache-2.0

// Inbox: what a stage gets from other stages while a schedule runs. Private to plugins/pipeline.
//
//   Inbox inbox(shape, schedule, stage, group, buffer_for);
//   inbox.Expect({.part = 3, .micro = 0});           // early: it arrives while this stage computes
//   Tensor x = inbox.Take({.part = 3, .micro = 0});
//
// Messages between two ranks are matched in order, so they are received in the order in which the
// peer's schedule sends them, whatever this stage needs first.
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
  // Where a message is to arrive. When `may_wait` is false and it is not known yet: undefined.
  using BufferFor = std::function<Tensor(const Message&, int from, bool may_wait)>;

  Inbox(const PipelineShape& shape, const PipelineSchedule& schedule, int stage,
        comm::GroupPtr group, BufferFor buffer_for);

  // Whether it comes from another stage.
  bool ComesFromElsewhere(const Message& message) const { return sender_.contains(message); }
  // Begins to receive it where that can be done without waiting.
  void Expect(const Message& message) { Receive(message, false); }
  // Waits for it.
  Tensor Take(const Message& message);

 private:
  struct Arriving {
    Tensor buffer;
    std::shared_ptr<comm::Work> work;
  };

  void Receive(const Message& message, bool may_wait);

  comm::GroupPtr group_;
  BufferFor buffer_for_;
  std::map<Message, int> sender_;              // by message: the stage
  std::map<int, std::deque<Message>> queues_;  // by sender: not received yet
  std::map<Message, Arriving> arriving_;
};

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_INBOX_H_
