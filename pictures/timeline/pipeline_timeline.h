// SPDX-License-Identifier: Apache-2.0

// StepTimeline: when each pipeline stage worked, and the share of time in which it waited, the
// bubble.
//
//   std::vector<StepTimeline> steps = Timelines(std::move(events));
//   steps[0].bubble_share()                   // 3/11 for 1F1B over 4 stages and 8 micro-batches
//   steps[0].stages()[2].idle_ns
//
// A stage is a rank. A step lasts from the begin of its first work to the end of its last, over all
// stages. A stage is busy while at least one piece of its work runs (pieces may be nested),
// otherwise idle. All times are in nanoseconds.
//
//   bubble_share = 1 - sum of busy / (stages * step)
#ifndef APOGEE_PICTURES_TIMELINE_PIPELINE_TIMELINE_H_
#define APOGEE_PICTURES_TIMELINE_PIPELINE_TIMELINE_H_

#include <cstdint>
#include <vector>

#include "apogee/core/trace/trace.h"

namespace apogee {

struct PipelineEvent {
  int64_t step = 0;
  int rank = 0;
  PipelineKind kind = PipelineKind::kForward;
  int64_t micro_batch = 0, chunk = 0;
  int64_t begin_ns = 0, end_ns = 0;  // at least begin_ns
};

struct StageTime {
  int rank = 0;
  int64_t busy_ns = 0, idle_ns = 0;
};

class StepTimeline {
 public:
  // `events`: at least one, all of the same step.
  explicit StepTimeline(std::vector<PipelineEvent> events);

  int64_t step() const { return events_[0].step; }
  // Sorted by rank, then by begin.
  const std::vector<PipelineEvent>& events() const { return events_; }
  // The ranks that work in this step, in order.
  const std::vector<StageTime>& stages() const { return stages_; }
  int64_t begin_ns() const { return begin_ns_; }
  int64_t makespan_ns() const { return end_ns_ - begin_ns_; }
  // In [0, 1); 0 if the step took no time.
  double bubble_share() const;

 private:
  std::vector<PipelineEvent> events_;
  std::vector<StageTime> stages_;
  int64_t begin_ns_, end_ns_;
};

// One timeline per step, sorted by step.
std::vector<StepTimeline> Timelines(std::vector<PipelineEvent> events);

// Of all steps together: their idle time divided by their total time.
double BubbleShare(const std::vector<StepTimeline>& steps);

}  // namespace apogee

#endif  // APOGEE_PICTURES_TIMELINE_PIPELINE_TIMELINE_H_
