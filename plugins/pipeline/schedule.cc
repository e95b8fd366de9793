// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/pipeline/schedule.h"

#include <algorithm>

#include "apogee/core/text/enum_names.h"
#include "apogee/plugins/pipeline/zero_bubble.h"

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
  if (shape.kind == ScheduleKind::kZbv) return ZeroBubbleV(shape);
  PipelineSchedule schedule;
  for (int stage = 0; stage < shape.num_stages; ++stage) {
    schedule.push_back(Interleaved(shape, stage));
  }
  return schedule;
}

}  // namespace apogee::pipeline
