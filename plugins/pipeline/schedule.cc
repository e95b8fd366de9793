// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/pipeline/schedule.h"

#include <algorithm>
#include <optional>

#include "apogee/core/error.h"
#include "apogee/core/text/enum_names.h"
#include "apogee/plugins/pipeline/simulation.h"

namespace apogee::pipeline {
namespace {

using Kind = PipelineOp::Kind;

constexpr EnumName<ScheduleKind> kScheduleNames[] = {{ScheduleKind::k1F1B, "1f1b"},
                                                     {ScheduleKind::kInterleaved, "interleaved"},
                                                     {ScheduleKind::kZbv, "zbv"}};

// The order in which a stage runs (micro-batch, chunk): groups of num_stages micro-batches go
// through one chunk after the other.
std::vector<PipelineOp> UnitOrder(const PipelineShape& shape, Kind kind) {
  std::vector<PipelineOp> order;
  for (int first = 0; first < shape.num_micros; first += shape.num_stages) {
    for (int c = 0; c < shape.num_chunks; ++c) {
      const int chunk = kind == Kind::kForward ? c : shape.num_chunks - 1 - c;
      for (int i = 0; i < shape.num_stages; ++i) order.push_back({kind, first + i, chunk});
    }
  }
  return order;
}

// 1F1B is the case of one chunk. The last group is as large as the others, with the missing
// micro-batches removed: a smaller group would make stages wait for each other.
std::vector<PipelineOp> Interleaved(const PipelineShape& shape, int stage) {
  const std::vector<PipelineOp> forwards = UnitOrder(shape, Kind::kForward);
  const std::vector<PipelineOp> backwards = UnitOrder(shape, Kind::kBackward);
  const int p = shape.num_stages, v = shape.num_chunks;
  const size_t count = forwards.size();
  const int ahead = v == 1 ? p - stage - 1 : 2 * (p - stage - 1) + (v - 1) * p;
  const size_t warm_up = std::min(static_cast<size_t>(ahead), count);
  std::vector<PipelineOp> ops(forwards.begin(),
                              forwards.begin() + static_cast<std::ptrdiff_t>(warm_up));
  for (size_t i = warm_up; i < count; ++i) {
    ops.push_back(forwards[i]);
    ops.push_back(backwards[i - warm_up]);
  }
  ops.insert(ops.end(), backwards.end() - static_cast<std::ptrdiff_t>(warm_up), backwards.end());
  std::erase_if(ops, [&](const PipelineOp& op) {
    return op.micro >= shape.num_micros || (op.kind == Kind::kBackward && !shape.training);
  });
  return ops;
}

// Makes the zbv schedule. Every operation takes one unit of time. A free stage prefers backward to
// forward, and runs weight gradients only when it can do nothing else or has no room.
class ZbvScheduler {
 public:
  explicit ZbvScheduler(const PipelineShape& shape)
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
    const auto op = [&](Kind kind, int chunk) {
      return PipelineOp{kind, stage.next[static_cast<size_t>(kind)][chunk], chunk};
    };
    const auto ready = [&](Kind kind, int chunk) {
      const PipelineOp next = op(kind, chunk);
      return next.micro < shape_.num_micros && progress_.ReadyAt(s, next) <= now;
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

const char* Name(ScheduleKind kind) { return NameOf<ScheduleKind>(kScheduleNames, kind); }

absl::StatusOr<ScheduleKind> ParsePipelineSchedule(const std::string& text) {
  return ParseName<ScheduleKind>("schedule", kScheduleNames, text);
}

int PipelineShape::StageOf(int part) const {
  const int place = part % num_stages;
  const bool backwards = kind == ScheduleKind::kZbv && ChunkOf(part) % 2 == 1;
  return backwards ? num_stages - 1 - place : place;
}

int PipelineShape::PartOf(int stage, int chunk) const {
  const bool backwards = kind == ScheduleKind::kZbv && chunk % 2 == 1;
  return chunk * num_stages + (backwards ? num_stages - 1 - stage : stage);
}

PipelineSchedule MakeSchedule(const PipelineShape& shape) {
  if (shape.kind == ScheduleKind::kZbv) return ZbvScheduler(shape).Run();
  PipelineSchedule schedule;
  for (int stage = 0; stage < shape.num_stages; ++stage) {
    schedule.push_back(Interleaved(shape, stage));
  }
  return schedule;
}

}  // namespace apogee::pipeline
