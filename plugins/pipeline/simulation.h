// SPDX-License-Identifier: Apache-2.0

// Progress: which operations of a schedule have run, and when others can. Private to
// plugins/pipeline.
//
//   Progress progress(shape);
//   if (progress.ReadyAt(stage, op) <= now) progress.Finish(stage, op, now + cost);
#ifndef APOGEE_PLUGINS_PIPELINE_SIMULATION_H_
#define APOGEE_PLUGINS_PIPELINE_SIMULATION_H_

#include <limits>
#include <vector>

#include "apogee/plugins/pipeline/schedule.h"

namespace apogee::pipeline {

class Progress {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  explicit Progress(const PipelineShape& shape);
  // Returns the time at which all inputs of the operation are there. kNever: an operation that
  // makes one of them has not run yet.
  double ReadyAt(int stage, const PipelineOp& op) const;
  void Finish(int stage, const PipelineOp& op, double time) {
    At(op.kind, Part(stage, op), op.micro) = time;
  }

 private:
  int Part(int stage, const PipelineOp& op) const { return shape_.PartOf(stage, op.chunk); }
  double& At(PipelineOp::Kind kind, int part, int micro);
  double At(PipelineOp::Kind kind, int part, int micro) const;

  PipelineShape shape_;
  std::vector<double> ends_;  // by kind, part and micro-batch
};

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_SIMULATION_H_
