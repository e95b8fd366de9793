// SPDX-License-Identifier: Apache-2.0

// Schedules of a pipeline: in which order each stage runs forward and backward of which
// micro-batch.
//
//   const PipelineShape shape{.kind = ScheduleKind::kOneFOneB, .num_stages = 4, .num_micros = 8};
//   const PipelineSchedule schedule = MakeSchedule(shape);      // one list of operations per stage
//   Simulate(shape, schedule, {.forward = 1, .backward = 2}).bubble_share;     // 3 / 11
//
// The model is cut into num_stages * num_chunks parts in a row; a stage holds num_chunks of them,
// its chunks. All of this is a pure function of the shape, so every rank knows what the others do.
//
//   1F1B         Narayanan et al., "PipeDream", 2019, with a flush. Stage s of p keeps the
//                activations of at most min(p - s, m) micro-batches; of m micro-batches of one
//                length the stages idle a share of (p - 1) / (m + p - 1) of the time.
//   interleaved  Narayanan et al., "Efficient large-scale language model training", 2021. Part k is
//                chunk k / p of stage k mod p. The idle time is 1 / num_chunks of 1F1B's; stage s
//                keeps at most min(2 (p - s - 1) + (v - 1) p + 1, m v) activations of chunks, v of
//                which are those of a stage.
//   zbv          after Qi et al., "Pipeline parallelism with controllable memory", 2024: parts s
//                and 2 p - 1 - s on stage s (a V, so the first stage also has the last part), and
//                the gradients of weights are computed apart, where a stage would idle. At most 2 p
//                activations of chunks, as many as 1F1B's first stage keeps of whole stages'
//                halves; between its two halves of backward a chunk keeps its outputs' gradients as
//                well.
#ifndef APOGEE_PLUGINS_PIPELINE_SCHEDULE_H_
#define APOGEE_PLUGINS_PIPELINE_SCHEDULE_H_

#include <string>
#include <vector>

namespace apogee::pipeline {

enum class ScheduleKind { kOneFOneB, kInterleaved, kZeroBubbleV };

// "1f1b", "interleaved", "zbv". Throws Error for another name.
ScheduleKind ParseSchedule(const std::string& name);

struct PipelineShape {
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  int num_stages = 1;
  int num_chunks = 1;  // 1 of 1F1B, 2 of zbv
  int num_micros = 1;
  bool training = true;  // false: forward only

  int num_parts() const { return num_stages * num_chunks; }
  // Where a part lies.
  int StageOf(int part) const;
  int ChunkOf(int part) const { return part / num_stages; }
  int PartOf(int stage, int chunk) const;
  // Gradients of weights are operations of their own.
  bool splits_backward() const { return kind == ScheduleKind::kZeroBubbleV; }
};

struct PipelineOp {
  // kBackward: all of it, or, where the schedule splits it, the gradients of inputs.
  enum class Kind { kForward, kBackward, kWeights } kind = Kind::kForward;
  int micro = 0;
  int chunk = 0;
  friend bool operator==(const PipelineOp&, const PipelineOp&) = default;
};

using PipelineSchedule = std::vector<std::vector<PipelineOp>>;  // by stage

PipelineSchedule MakeSchedule(const PipelineShape& shape);

// What an operation of one chunk takes. `weights` belongs to backward where that is not split.
struct OpCosts {
  double forward = 1, backward = 1, weights = 1;
};

struct SimulatedRun {
  double makespan = 0;
  double bubble_share = 0;  // of the stages' time until the last one has ended
  // By stage: the most chunks' activations that were kept at once, from an operation's begin on.
  std::vector<int> peak_activations;
};

// Every stage runs its list as soon as what an operation needs has come, which takes no time.
// Throws Error for a schedule that cannot go on.
SimulatedRun Simulate(const PipelineShape& shape, const PipelineSchedule& schedule,
                      const OpCosts& costs);

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_SCHEDULE_H_
