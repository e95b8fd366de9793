// SPDX-License-Identifier: Apache-2.0

// Pipeline schedules: the order in which each stage runs forward and backward of the micro-batches.
//
//   const PipelineShape shape{.kind = ScheduleKind::k1F1B, .num_stages = 4, .num_micros = 8};
//   const PipelineSchedule schedule = MakeSchedule(shape);      // one list of operations per stage
//   Simulate(shape, schedule, {.forward = 1, .backward = 2}).bubble_share;     // 3 / 11
//
// The model is cut into num_stages * num_chunks consecutive parts. Each stage holds num_chunks of
// them, its chunks. A schedule depends only on the shape, so every rank knows those of all others.
// Below, p is the number of stages, s a stage, m the number of micro-batches, v = num_chunks.
//
//   1F1B         Narayanan et al., "PipeDream", 2019, with a flush.
//                Idle share of the time:  (p - 1) / (m + p - 1), for micro-batches of one length
//                Kept on stage s:         activations of at most min(p - s, m) micro-batches
//   interleaved  Narayanan et al., "Efficient large-scale language model training", 2021. Part k is
//                chunk k / p of stage k mod p.
//                Idle time:               1 / v of 1F1B's
//                Kept on stage s:         activations of at most
//                                         min(2 (p - s - 1) + (v - 1) p + 1, m v) chunks; v chunks
//                                         make a stage
//   zbv          After Qi et al., "Pipeline parallelism with controllable memory", 2024. Stage s
//                has parts s and 2 p - 1 - s (a V, so the first stage also has the last part).
//                Weight gradients are computed separately, when a stage would idle.
//                Kept on a stage:         activations of at most 2 p chunks, as much memory as
//                                         1F1B's first stage takes; between its two halves of
//                                         backward a chunk keeps its outputs' gradients as well
#ifndef APOGEE_PLUGINS_PIPELINE_SCHEDULE_H_
#define APOGEE_PLUGINS_PIPELINE_SCHEDULE_H_

#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::pipeline {

enum class ScheduleKind { k1F1B, kInterleaved, kZbv };

// "1f1b", "interleaved", "zbv".
const char* Name(ScheduleKind kind);
absl::StatusOr<ScheduleKind> ParsePipelineSchedule(const std::string& text);

struct PipelineShape {
  ScheduleKind kind = ScheduleKind::k1F1B;
  int num_stages = 1;
  int num_chunks = 1;  // 1 for 1F1B, 2 for zbv
  int num_micros = 1;
  bool training = true;  // false: forward only

  int num_parts() const { return num_stages * num_chunks; }
  // The stage that holds a part.
  int StageOf(int part) const;
  int ChunkOf(int part) const { return part / num_stages; }
  int PartOf(int stage, int chunk) const;
  // Weight gradients are operations of their own.
  bool splits_backward() const { return kind == ScheduleKind::kZbv; }
};

struct PipelineOp {
  // kBackward: all of backward or, if the schedule splits it, only the gradients of inputs.
  enum class Kind { kForward, kBackward, kWeights } kind = Kind::kForward;
  int micro = 0;
  int chunk = 0;
  friend bool operator==(const PipelineOp&, const PipelineOp&) = default;
};

using PipelineSchedule = std::vector<std::vector<PipelineOp>>;  // by stage

PipelineSchedule MakeSchedule(const PipelineShape& shape);

// Time of an operation of one chunk. `weights` is part of backward if that is not split.
struct OpCosts {
  double forward = 1, backward = 1, weights = 1;
};

struct SimulatedRun {
  double makespan = 0;
  double bubble_share = 0;  // idle part of the stages' time until the last one ends
  // By stage: the most chunks' activations kept at once, counted from an operation's begin.
  std::vector<int> peak_activations;
};

// Simulates a run in which every stage starts an operation as soon as its inputs have arrived;
// messages take no time. Throws Error for a schedule that deadlocks.
SimulatedRun Simulate(const PipelineShape& shape, const PipelineSchedule& schedule,
                      const OpCosts& costs);

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_SCHEDULE_H_
