// SPDX-License-Identifier: Apache-2.0

// Scale: how the same training runs on more and more ranks. A simulation.
//
//   const auto points = plan::Scale(setup, {.machine = machine}, {64, 1024, 16384},
//                                   plan::Scaling::kWeak);
//   std::cout << plan::TableOf(*points);
//
// Each point is a plan (plan.h): the fastest plugin and mesh that fits that many ranks.
#ifndef APOGEE_PLAN_SCALING_H_
#define APOGEE_PLAN_SCALING_H_

#include <string>
#include <vector>

#include "apogee/plan/plan.h"

namespace apogee::plan {

// Strong: every point has setup.batch. Weak: the first point has it, and the others have as many
// samples for each rank as the first one.
enum class Scaling { kStrong, kWeak };

struct ScalingPoint {
  int num_ranks = 1;
  int64_t batch = 0;
  PlanRow row = PlanRow();
  // Why there is no row; empty: there is one.
  std::string refusal = {};
  double tokens_per_second = 0;
  // Tokens per second and rank, divided by those of the first point that has a row.
  double efficiency = 0;
  // Of the machine's rate of products; 0 for a measured machine.
  double share_of_peak = 0;
};

// FailedPrecondition without options.machine; InvalidArgument as Plan, and for ranks that do not
// ascend or, for weak scaling, batches that are not whole.
absl::StatusOr<std::vector<ScalingPoint>> Scale(const TrainingSetup& setup,
                                                const PlanOptions& options,
                                                const std::vector<int>& ranks, Scaling scaling);

std::string TableOf(const std::vector<ScalingPoint>& points, Scaling scaling);
// [{"num_ranks": …, "batch": …, "name": …, "step_seconds": …, …}, …]
std::string JsonOf(const std::vector<ScalingPoint>& points);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_SCALING_H_
