// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/plan.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <utility>

#include "apogee/core/process/thread_team.h"
#include "apogee/core/text/text.h"
#include "apogee/plan/check.h"
#include "apogee/plan/price.h"

namespace apogee::plan {
namespace {

std::vector<PlanRow> PriceAll(const TrainingSetup& setup, const std::vector<Candidate>& candidates,
                              const PlanOptions& options) {
  std::vector<PlanRow> rows(candidates.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < candidates.size(); i = next++) {
      rows[i] = Price(setup, candidates[i], options);
    }
  };
  std::vector<std::future<void>> others;
  const int jobs = options.jobs > 0 ? options.jobs : ShareOfCores(1);
  for (int j = 1; j < jobs; ++j) others.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& other : others) other.get();
  return rows;
}

struct Change {
  std::string text;
  TrainingSetup setup;
  int num_ranks;
  bool offload = false;
};

// From the smallest to the largest.
std::vector<Change> ChangesOf(const TrainingSetup& setup, int num_ranks) {
  TrainingSetup recomputed = setup, accumulated = setup;
  recomputed.recompute = setup.can_recompute;
  if (setup.batch % num_ranks == 0) {
    accumulated.accumulate = std::max(setup.accumulate, setup.batch / num_ranks);
  }
  TrainingSetup both = recomputed;
  both.accumulate = accumulated.accumulate;
  const std::string accumulate = "accumulate " + std::to_string(accumulated.accumulate);
  std::string all = recomputed.recompute ? "recompute" : "";
  std::vector<Change> changes;
  if (recomputed.recompute && !setup.recompute) {
    changes.push_back({"recompute", recomputed, num_ranks});
  }
  if (accumulated.accumulate > setup.accumulate) {
    changes.push_back({accumulate, accumulated, num_ranks});
    all += (all.empty() ? "" : " and ") + accumulate;
    changes.push_back({all, both, num_ranks});
  }
  const std::string with = all.empty() ? "" : all + " and ";
  changes.push_back({with + "offload", both, num_ranks, true});
  if (!setup.lora && !setup.train) {
    TrainingSetup adapted = both;
    adapted.lora = nn::LoraOptions{.rank = 8, .alpha = 16};
    changes.push_back({with + "an adapter of rank 8 (LoRA)", adapted, num_ranks});
  }
  for (int factor = 2; factor <= 8; factor *= 2) {
    changes.push_back(
        {with + std::to_string(num_ranks * factor) + " ranks", both, num_ranks * factor});
  }
  return changes;
}

// The candidates that come nearest to fitting: a change is tried with these.
std::vector<Candidate> Nearest(const std::vector<PlanRow>& rows) {
  constexpr size_t kMost = 2;
  std::vector<const PlanRow*> priced;
  for (const PlanRow& row : rows) {
    if (row.refusal.empty()) priced.push_back(&row);
  }
  std::ranges::sort(priced, {}, &PlanRow::peak_bytes);
  std::vector<Candidate> nearest;
  for (const PlanRow* row : priced) {
    if (nearest.size() < kMost) nearest.push_back(row->candidate);
  }
  return nearest;
}

void FindChange(PlanReport& report) {
  const std::vector<Candidate> nearest = Nearest(report.rows);
  const auto is_far = [&](const Candidate& candidate) {
    return std::ranges::none_of(nearest, [&](const Candidate& other) {
      return candidate.plugin == other.plugin && candidate.pp == other.pp &&
             candidate.tp == other.tp && candidate.ep == other.ep;
    });
  };
  for (const Change& change : ChangesOf(report.setup, report.options.num_ranks)) {
    std::vector<Candidate> candidates = Candidates(change.setup, change.num_ranks, change.offload);
    if (!change.offload) std::erase_if(candidates, is_far);
    const std::vector<PlanRow> rows = PriceAll(change.setup, candidates, report.options);
    const auto found = std::ranges::find_if(rows, &PlanRow::fits);
    if (found == rows.end()) continue;
    report.change = change.text;
    report.changed = change.setup;
    report.changed_row = *found;
    return;
  }
}

}  // namespace

const PlanRow* PlanReport::best() const {
  const PlanRow* best = nullptr;
  for (const PlanRow& row : rows) {
    if (row.fits && (best == nullptr || row.step_seconds < best->step_seconds)) best = &row;
  }
  return best;
}

Reliability ReliabilityOf(const PlanRow& row, const PlanOptions& options) {
  double save_seconds = options.reliability.save_seconds;
  if (save_seconds == 0) {
    const auto& peaks = row.largest.memory.peak_bytes;
    const int64_t saved = peaks[static_cast<size_t>(MemoryCategory::kParameter)] +
                          peaks[static_cast<size_t>(MemoryCategory::kOptimizerState)];
    save_seconds = static_cast<double>(saved) / options.reliability.save_bytes_per_second;
  }
  return ReliabilityOf(options.reliability, options.num_ranks, save_seconds);
}

absl::StatusOr<PlanReport> Plan(const TrainingSetup& setup, const PlanOptions& options) {
  APOGEE_RETURN_IF_ERROR(CheckSetup(setup));
  if (options.num_ranks < 1 || options.num_ranks > kMaxRanks) {
    return InvalidArgument("plan: the number of ranks must be from 1 to ", kMaxRanks, ", got ",
                           options.num_ranks);
  }
  if (options.device_bytes < 0) {
    return InvalidArgument("plan: the memory of a rank must be positive, or 0 if it is not known");
  }
  PlanReport report{.setup = setup, .options = options};
  if (setup.make_model) report.num_parameters = setup.make_model(false)->num_parameters();
  std::vector<Candidate> candidates = Candidates(setup, options.num_ranks);
  const bool is_name = std::ranges::any_of(
      candidates, [&](const Candidate& candidate) { return candidate.name == options.only; });
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return is_name ? candidate.name != options.only
                   : candidate.name.find(options.only) == std::string::npos;
  });
  if (candidates.empty()) {
    return InvalidArgument("plan: no plugin of those for ", options.num_ranks, " ranks has \"",
                           options.only, "\" in its name");
  }
  report.rows = PriceAll(setup, candidates, options);
  for (PlanRow& row : report.rows) {
    if (options.check && row.refusal.empty()) CheckRow(setup, options.threads_per_rank, row);
  }
  if (!report.fits() && options.find_change) FindChange(report);
  return report;
}

absl::StatusOr<PlanRow> Choose(const TrainingSetup& setup, const PlanOptions& options) {
  APOGEE_ASSIGN_OR_RETURN(const PlanReport report, Plan(setup, options));
  if (const PlanRow* best = report.best()) return *best;
  std::string refusals;
  for (const PlanRow& row : report.rows) {
    if (!row.refusal.empty()) refusals += "\n  " + row.candidate.name + ": " + row.refusal;
  }
  const std::string change = report.change.empty() ? ""
                                                   : "; it fits with " + report.change + ": " +
                                                         report.changed_row.candidate.name;
  return absl::FailedPreconditionError(
      internal::Concat("plan: no plugin fits ", options.num_ranks, " ranks of ",
                       FormatBytes(options.device_bytes), change, refusals));
}

}  // namespace apogee::plan
