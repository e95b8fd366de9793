// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/pipeline/simulation.h"

#include <algorithm>

#include "apogee/core/error.h"

namespace apogee::pipeline {

using Kind = PipelineOp::Kind;

Progress::Progress(const PipelineShape& shape)
    : shape_(shape), ends_(static_cast<size_t>(3 * shape.num_parts() * shape.num_micros), kNever) {}

double& Progress::At(Kind kind, int part, int micro) {
  const int index =
      (static_cast<int>(kind) * shape_.num_parts() + part) * shape_.num_micros + micro;
  return ends_[static_cast<size_t>(index)];
}

double Progress::At(Kind kind, int part, int micro) const {
  return const_cast<Progress*>(this)->At(kind, part, micro);
}

double Progress::ReadyAt(int stage, const PipelineOp& op) const {
  const int part = Part(stage, op);
  if (op.kind == Kind::kForward) return part == 0 ? 0 : At(Kind::kForward, part - 1, op.micro);
  if (op.kind == Kind::kWeights) return At(Kind::kBackward, part, op.micro);
  const double forward = At(Kind::kForward, part, op.micro);
  if (part == shape_.num_parts() - 1) return forward;
  return std::max(forward, At(Kind::kBackward, part + 1, op.micro));
}

SimulatedRun Simulate(const PipelineShape& shape, const PipelineSchedule& schedule,
                      const OpCosts& costs) {
  const auto cost_of = [&](Kind kind) {
    if (kind == Kind::kForward) return costs.forward;
    if (kind == Kind::kWeights) return costs.weights;
    return costs.backward + (shape.splits_backward() ? 0 : costs.weights);
  };
  const size_t p = schedule.size();
  Progress progress(shape);
  SimulatedRun run{.peak_activations = std::vector<int>(p, 0)};
  std::vector<size_t> next(p, 0);
  std::vector<double> now(p, 0);
  std::vector<int> kept(p, 0);
  double busy = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < p; ++s) {
      for (; next[s] < schedule[s].size(); ++next[s]) {
        const PipelineOp& op = schedule[s][next[s]];
        const double ready = progress.ReadyAt(static_cast<int>(s), op);
        if (ready == Progress::kNever) break;
        now[s] = std::max(now[s], ready) + cost_of(op.kind);
        progress.Finish(static_cast<int>(s), op, now[s]);
        busy += cost_of(op.kind);
        moved = true;
        const Kind last = shape.splits_backward() ? Kind::kWeights : Kind::kBackward;
        if (op.kind == Kind::kForward) ++kept[s];
        run.peak_activations[s] = std::max(run.peak_activations[s], kept[s]);
        if (op.kind == last) --kept[s];
      }
    }
  }
  for (size_t s = 0; s < p; ++s) {
    APOGEE_CHECK(next[s] == schedule[s].size(), "pipeline: stage ", s, " of ", p,
                 " would wait forever at operation ", next[s], " of its schedule");
  }
  run.makespan = *std::ranges::max_element(now);
  run.bubble_share = 1 - busy / (run.makespan * static_cast<double>(p));
  return run;
}

}  // namespace apogee::pipeline
