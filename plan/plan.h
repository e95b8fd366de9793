// SPDX-License-Identifier: Apache-2.0

// Plan: which plugins fit a model, and what each rank needs.
//
//   APOGEE_ASSIGN_OR_RETURN(plan::TrainingSetup setup, plan::SetupOf("gpt2"));
//   APOGEE_ASSIGN_OR_RETURN(plan::PlanReport report,
//                           plan::Plan(setup, {.num_ranks = 8, .device_bytes = 80LL << 30}));
//   std::cout << plan::TableOf(report);
//
// Each row is a dry run (dry_run.h) of two steps of the ordinary loop under one plugin: a lazy
// model, boost, forward, backward, step. One rank of each role runs: the first one of every
// pipeline stage. Nothing is estimated by a formula. The figures are those of these ranks; the
// others have at most a rounding more or less, or with optimizers whose states belong to owners
// (GaLore) their share of the owners.
#ifndef APOGEE_PLAN_PLAN_H_
#define APOGEE_PLAN_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/plan/candidates.h"
#include "apogee/plan/dry_run.h"

namespace apogee::plan {

inline constexpr int kMaxRanks = 1 << 20;

struct PlanOptions {
  int num_ranks = 1;
  int64_t device_bytes = 0;  // memory for a rank; 0: not known, everything fits
  int threads_per_rank = 1;
  // The number of candidates that are priced at the same time. 0: one for each core.
  int jobs = 0;
  // Only candidates whose name contains this text.
  std::string only = {};
  // Also train the two steps of each row for real, one row at a time, with threads as ranks.
  bool measure = false;
};

struct PlanRow {
  Candidate candidate = {};
  // Why there are no figures: Misfit, or what the plugin refused. Empty: there are.
  std::string refusal = {};
  std::vector<RankPlan> ranks = {};     // one of each role
  std::vector<RankPlan> measured = {};  // the same ranks in a real run (PlanOptions::measure)
  // The figures of the rank that needs most memory. `peak` is what the rank takes from the system,
  // cached blocks included; the categories are their own peaks, at different moments.
  RankPlan largest = {};
  int64_t peak_bytes() const { return largest.memory.peak_reserved_bytes; }
  // Of a step, of the rank that sends most.
  int64_t collectives = 0;
  int64_t bytes = 0;
  bool fits = false;
};

struct PlanReport {
  TrainingSetup setup = {};
  PlanOptions options = {};
  int64_t num_parameters = 0;
  std::vector<PlanRow> rows = {};
  // If nothing fits: the smallest change that makes it fit, in words ("recompute"), and the setup
  // and the row that fit then. Empty: nothing had to change, or no change of those tried helps.
  std::string change = {};
  TrainingSetup changed = {};
  PlanRow changed_row = {};

  bool fits() const;
};

// InvalidArgument for a setup or options with problems; lists them all.
absl::StatusOr<PlanReport> Plan(const TrainingSetup& setup, const PlanOptions& options);

// A table of the rows, the C++ lines of the first that fits, and the change.
std::string TableOf(const PlanReport& report);
// {"model": …, "parameters": …, "rows": [{"name": …, "fits": true, "peak_bytes": …, …}], …}
std::string JsonOf(const PlanReport& report);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_PLAN_H_
