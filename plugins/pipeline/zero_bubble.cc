// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/pipeline/zero_bubble.h"

#include <algorithm>
#include <optional>

#include "apogee/core/error.h"
#include "apogee/plugins/pipeline/simulation.h"

namespace apogee::pipeline {
namespace {

using Kind = PipelineOp::Kind;

// Every operation takes one unit of time. A free stage prefers backward to forward, and runs weight
// gradients only when it can do nothing else or has no room.
class Scheduler {
 public:
  explicit Scheduler(const PipelineShape& shape)
      : shape_(shape), progress_(shape), stages_(static_cast<size_t>(shape.num_stages)) {}

  PipelineSchedule Run() {
    PipelineSchedule schedule(stages_.size());
    const int per_stage = 2 * shape_.num_micros * (shape_.training ? 3 : 1);
    int left = per_stage * shape_.num_stages;
    for (double now = 0; left > 0; ++now) {
      // All stages choose among operations whose inputs had ended by now.
      std::vector<std::optional<PipelineOp>> chosen;
      for (int s = 0; s < shape_.num_stages; ++s) chosen.push_back(Choose(s, now));
      for (int s = 0; s < shape_.num_stages; ++s) {
        const std::optional<PipelineOp>& op = chosen[static_cast<size_t>(s)];
        if (!op) continue;
        progress_.Finish(s, *op, now + 1);
        ++stages_[static_cast<size_t>(s)].next[static_cast<size_t>(op->kind)][op->chunk];
        schedule[static_cast<size_t>(s)].push_back(*op);
        --left;
      }
      APOGEE_CHECK(now < 100.0 * per_stage + 100, "pipeline: the zbv scheduler does not end");
    }
    return schedule;
  }

 private:
  struct Stage {
    int next[3][2] = {};  // by kind and chunk: the next micro-batch
  };

  // A micro-batch that has begun needs room for both of its chunks, or it could not return up the
  // V.
  bool HasRoom(const Stage& stage) const {
    const auto& weights = stage.next[static_cast<size_t>(Kind::kWeights)];
    const int begun = stage.next[static_cast<size_t>(Kind::kForward)][0];
    return !shape_.training || 2 * begun - weights[0] - weights[1] + 2 <= 2 * shape_.num_stages;
  }

  std::optional<PipelineOp> Choose(int s, double now) const {
    const Stage& stage = stages_[static_cast<size_t>(s)];
    const auto ready = [&](Kind kind, int chunk) {
      const PipelineOp op{kind, stage.next[static_cast<size_t>(kind)][chunk], chunk};
      return op.micro < shape_.num_micros && progress_.ReadyAt(s, op) <= now;
    };
    const auto op = [&](Kind kind, int chunk) {
      return PipelineOp{kind, stage.next[static_cast<size_t>(kind)][chunk], chunk};
    };
    if (shape_.training) {
      // First the chunk that other stages wait for longest: the one on the way down the V.
      for (const int chunk : {0, 1}) {
        if (ready(Kind::kBackward, chunk)) return op(Kind::kBackward, chunk);
      }
    }
    if (ready(Kind::kForward, 1)) return op(Kind::kForward, 1);
    if (ready(Kind::kForward, 0) && HasRoom(stage)) return op(Kind::kForward, 0);
    if (!shape_.training) return std::nullopt;
    for (const int chunk : {1, 0}) {
      if (ready(Kind::kWeights, chunk)) return op(Kind::kWeights, chunk);
    }
    return std::nullopt;
  }

  const PipelineShape shape_;
  Progress progress_;
  std::vector<Stage> stages_;
};

}  // namespace

PipelineSchedule ZeroBubbleV(const PipelineShape& shape) { return Scheduler(shape).Run(); }

}  // namespace apogee::pipeline
