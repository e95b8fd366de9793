// SPDX-License-Identifier: Apache-2.0

#include "apogee/pictures/timeline/pipeline_timeline.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "apogee/core/error.h"

namespace apogee {
namespace {

// The time that the events, sorted by begin, cover together.
int64_t CoveredNs(std::span<const PipelineEvent> events) {
  int64_t covered = 0, until = events[0].begin_ns;
  for (const PipelineEvent& event : events) {
    covered += std::max<int64_t>(event.end_ns - std::max(event.begin_ns, until), 0);
    until = std::max(until, event.end_ns);
  }
  return covered;
}

struct StageSums {
  double idle_ns = 0, all_ns = 0;  // doubles: untrusted times could overflow
};
StageSums SumsOf(const StepTimeline& step) {
  StageSums sums;
  for (const StageTime& stage : step.stages()) {
    sums.idle_ns += static_cast<double>(stage.idle_ns);
    sums.all_ns += static_cast<double>(step.makespan_ns());
  }
  return sums;
}
double ShareOf(const StageSums& sums) { return sums.all_ns > 0 ? sums.idle_ns / sums.all_ns : 0; }

}  // namespace

StepTimeline::StepTimeline(std::vector<PipelineEvent> events) : events_(std::move(events)) {
  APOGEE_CHECK(!events_.empty(), "timeline: a step without events");
  std::ranges::sort(events_, {}, [](const PipelineEvent& event) {
    return std::tuple(event.rank, event.begin_ns, -event.end_ns);
  });
  begin_ns_ = std::ranges::min(events_, {}, &PipelineEvent::begin_ns).begin_ns;
  end_ns_ = std::ranges::max(events_, {}, &PipelineEvent::end_ns).end_ns;
  for (size_t first = 0; first < events_.size();) {
    size_t last = first;
    while (last < events_.size() && events_[last].rank == events_[first].rank) ++last;
    const int64_t busy_ns = CoveredNs(std::span(events_).subspan(first, last - first));
    stages_.push_back({events_[first].rank, busy_ns, makespan_ns() - busy_ns});
    first = last;
  }
}

double StepTimeline::bubble_share() const { return ShareOf(SumsOf(*this)); }

std::vector<StepTimeline> Timelines(std::vector<PipelineEvent> events) {
  std::ranges::stable_sort(events, {}, &PipelineEvent::step);
  std::vector<StepTimeline> steps;
  for (auto first = events.begin(); first != events.end();) {
    const auto last = std::find_if(
        first, events.end(), [&](const PipelineEvent& event) { return event.step != first->step; });
    steps.emplace_back(std::vector<PipelineEvent>(first, last));
    first = last;
  }
  return steps;
}

double BubbleShare(const std::vector<StepTimeline>& steps) {
  StageSums sums;
  for (const StepTimeline& step : steps) {
    const StageSums more = SumsOf(step);
    sums.idle_ns += more.idle_ns;
    sums.all_ns += more.all_ns;
  }
  return ShareOf(sums);
}

}  // namespace apogee
