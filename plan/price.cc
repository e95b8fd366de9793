// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/price.h"

#include <algorithm>
#include <utility>

#include "apogee/plan/train_steps.h"

namespace apogee::plan {
namespace {

constexpr int kNumSteps = 2;
// In a full pipeline with messages that take time, micro-batches add two times by turns.
constexpr int64_t kPeriod = 2;

absl::StatusOr<std::vector<RankPlan>> DryRunOf(const TrainingSetup& setup,
                                               const Candidate& candidate,
                                               const PlanOptions& options) {
  const auto run = [&](comm::World& world) {
    TrainSteps(setup, candidate, world, kNumSteps, [&](int step) {
      if (step + 1 == kNumSteps) BeginStep(world);
    });
  };
  return DryRun({.num_ranks = candidate.num_ranks,
                 .threads_per_rank = options.threads_per_rank,
                 .ranks = candidate.Roles(),
                 .stand_in = [&](int rank) { return candidate.RoleOf(rank); },
                 .machine = options.machine ? &*options.machine : nullptr},
                run);
}

// A step with `count` micro-batches of the same size.
absl::StatusOr<std::vector<RankPlan>> DryRunOf(TrainingSetup setup, Candidate candidate,
                                               const PlanOptions& options, int64_t count) {
  if (candidate.pp > 1) {
    setup.batch = count * candidate.dp();
    candidate.options["num_microbatches"] = std::to_string(count);
  } else {
    setup.batch = setup.batch / setup.accumulate * count;
    setup.accumulate = count;
  }
  return DryRunOf(setup, candidate, options);
}

// `shorter`, and `times` times what `longer` has more.
RankPlan Continue(const RankPlan& shorter, const RankPlan& longer, int64_t times) {
  const auto line = [&](auto a, auto b) { return a + static_cast<decltype(a)>(times) * (b - a); };
  const auto each = [&](auto& a, const auto& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] = line(a[i], b[i]);
  };
  RankPlan all = shorter;
  each(all.memory.live_bytes, longer.memory.live_bytes);
  each(all.memory.peak_bytes, longer.memory.peak_bytes);
  const MemoryFigures& a = shorter.memory;
  const MemoryFigures& b = longer.memory;
  all.memory.peak_total_bytes = line(a.peak_total_bytes, b.peak_total_bytes);
  all.memory.slack_bytes = line(a.slack_bytes, b.slack_bytes);
  all.memory.peak_reserved_bytes = line(a.peak_reserved_bytes, b.peak_reserved_bytes);
  all.traffic = shorter.traffic + times * (longer.traffic - shorter.traffic);
  all.step = {
      .seconds = line(shorter.step.seconds, longer.step.seconds),
      .flops = line(shorter.step.flops, longer.step.flops),
      .traffic = shorter.step.traffic + times * (longer.step.traffic - shorter.step.traffic)};
  return all;
}

absl::StatusOr<std::vector<RankPlan>> RanksOf(const TrainingSetup& setup,
                                              const Candidate& candidate,
                                              const PlanOptions& options) {
  const int64_t count = candidate.pp > 1 ? setup.batch / candidate.dp() : setup.accumulate;
  const int64_t full = 2 * static_cast<int64_t>(candidate.pp);
  if (setup.train || count <= 2 * full + 1) return DryRunOf(setup, candidate, options);
  const int64_t first = full + (count - full) % kPeriod;
  APOGEE_ASSIGN_OR_RETURN(std::vector<RankPlan> ranks, DryRunOf(setup, candidate, options, first));
  APOGEE_ASSIGN_OR_RETURN(const std::vector<RankPlan> longer,
                          DryRunOf(setup, candidate, options, first + kPeriod));
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r] = Continue(ranks[r], longer[r], (count - first) / kPeriod);
  }
  return ranks;
}

}  // namespace

PlanRow Price(const TrainingSetup& setup, const Candidate& candidate, const PlanOptions& options) {
  PlanRow row{.candidate = candidate, .refusal = Misfit(candidate, setup)};
  if (!row.refusal.empty()) return row;
  auto ranks = RanksOf(setup, candidate, options);
  if (!ranks.ok()) {
    row.refusal = Message(ranks.status());
    return row;
  }
  row.ranks = *std::move(ranks);
  row.largest = *std::ranges::max_element(
      row.ranks, {}, [](const RankPlan& rank) { return rank.memory.peak_reserved_bytes; });
  for (const RankPlan& rank : row.ranks) {
    row.collectives = std::max(row.collectives, rank.step.traffic.total_calls());
    row.bytes = std::max(row.bytes, rank.step.traffic.total_bytes());
    row.flops = std::max(row.flops, rank.step.flops);
    row.step_seconds = std::max(row.step_seconds, rank.step.seconds);
    row.total_bytes += rank.memory.peak_reserved_bytes * (candidate.num_ranks / candidate.pp);
  }
  row.fits = options.device_bytes == 0 || row.peak_bytes() <= options.device_bytes;
  return row;
}

}  // namespace apogee::plan
