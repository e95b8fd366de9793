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
// pipeline stage. No memory is estimated by a formula. The figures are those of these ranks; the
// others have at most a rounding more or less, or with optimizers whose states belong to owners
// (GaLore) their share of the owners. With a machine (machine/machine.h) rows have a step time.
//
// A program's own loop, and the plugin for it:
//
//   plan::TrainingSetup setup{.model = "mine", .train = [&](comm::World& world, Plugin& plugin,
//                                                           const auto& before_step) { ... }};
//   const plan::PlanRow row = ValueOrThrow(plan::Choose(setup, options));
//   launch({.num_ranks = 8}, [&](comm::World& world) {
//     auto plugin = ValueOrThrow(PluginRegistry().Make(row.candidate.plugin, world, training,
//                                                      row.candidate.options));
#ifndef APOGEE_PLAN_PLAN_H_
#define APOGEE_PLAN_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apogee/plan/candidates.h"
#include "apogee/plan/dry_run.h"
#include "apogee/plan/machine/machine.h"
#include "apogee/plan/reliability.h"

namespace apogee::plan {

inline constexpr int kMaxRanks = 1 << 20;

struct PlanOptions {
  int num_ranks = 1;
  int64_t device_bytes = 0;  // memory for a rank; 0: not known, everything fits
  int threads_per_rank = 1;
  // The number of candidates that are priced at the same time. 0: one for each core.
  int jobs = 0;
  // Only the candidate with this name; if there is none, those whose names contain this text.
  std::string only = {};
  // For the times of steps. None: there are none.
  std::optional<Machine> machine = {};
  ReliabilityOptions reliability = ReliabilityOptions();
  // If nothing fits, look for the smallest change that helps.
  bool find_change = true;
  // Also train each row for real here, one row at a time, with threads as ranks.
  bool check = false;
};

struct PlanRow {
  Candidate candidate = Candidate();
  // Why there are no figures: Misfit, or what the plugin refused. Empty: there are.
  std::string refusal = {};
  std::vector<RankPlan> ranks = {};  // one of each role
  // The same ranks in a real run, and the median of its steps (PlanOptions::check).
  std::vector<RankPlan> measured = {};
  double measured_step_seconds = 0;
  // What that run, with all its ranks, took from the system at most. 0: the system does not say.
  int64_t measured_process_bytes = 0;
  // The figures of the rank that needs most memory. `peak` is what the rank takes from the system,
  // cached blocks included; the categories are their own peaks, at different moments.
  RankPlan largest = RankPlan();
  int64_t peak_bytes() const { return largest.memory.peak_reserved_bytes; }
  // Of all ranks together.
  int64_t total_bytes = 0;
  // Of a step, of the rank that sends most.
  int64_t collectives = 0;
  int64_t bytes = 0;
  double flops = 0;
  // 0: there is no machine. If ranks share cores, at least the work of all ranks divided by the
  // cores.
  double step_seconds = 0;
  bool fits = false;
};

struct PlanReport {
  TrainingSetup setup = TrainingSetup();
  PlanOptions options = PlanOptions();
  int64_t num_parameters = 0;
  std::vector<PlanRow> rows = {};
  // If nothing fits: the smallest change that makes it fit, in words ("recompute"), and the setup
  // and the row that fit then. Empty: nothing had to change, or no change of those tried helps.
  std::string change = {};
  TrainingSetup changed = TrainingSetup();
  PlanRow changed_row = PlanRow();

  bool fits() const { return best() != nullptr; }
  // Of the rows that fit, the one with the shortest step; without times, the first one. Null: none
  // fits.
  const PlanRow* best() const;
};

// InvalidArgument for a setup or options with problems; lists them all.
absl::StatusOr<PlanReport> Plan(const TrainingSetup& setup, const PlanOptions& options);

// PlanReport::best, or FailedPrecondition if nothing fits; says which change would help.
absl::StatusOr<PlanRow> Choose(const TrainingSetup& setup, const PlanOptions& options);

// Of a priced row.
Reliability ReliabilityOf(const PlanRow& row, const PlanOptions& options);

// "gpt2, 124,439,808 parameters, bf16, adamw; a step has 32 samples of 1,024 tokens" and a newline.
std::string Describe(const TrainingSetup& setup);
// A table of the rows, the C++ lines of the best one, and the change.
std::string TableOf(const PlanReport& report);
// {"model": …, "parameters": …, "rows": [{"name": …, "fits": true, "peak_bytes": …, …}], …}
std::string JsonOf(const PlanReport& report);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_PLAN_H_
