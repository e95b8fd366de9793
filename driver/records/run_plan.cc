// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/records/run_plan.h"

#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/driver/reports.h"

namespace apogee::driver {
namespace {

// A dry run has a thread for each rank.
constexpr int kMostRanks = 16;
constexpr size_t kNumFigures = kNumMemoryCategories + 2;  // and all, and the cached rest

// Peaks by category, then "slack", then the peak of all.
std::vector<double> FiguresOf(const MemoryFigures& memory) {
  std::vector<double> figures(memory.peak_bytes.begin(), memory.peak_bytes.end());
  figures.push_back(static_cast<double>(memory.peak_reserved_bytes - memory.peak_total_bytes));
  figures.push_back(static_cast<double>(memory.peak_reserved_bytes));
  return figures;
}

const char* NameOf(size_t figure) {
  return figure < kNumMemoryCategories ? MemoryCategoryName(static_cast<MemoryCategory>(figure))
                                       : "slack";
}

std::string Planned(double planned, double measured) {
  const std::string text =
      internal::Concat("planned ", FormatBytes(static_cast<int64_t>(planned)), ", measured ",
                       FormatBytes(static_cast<int64_t>(measured)));
  return planned > 0 ? text + " (" + FormatChange(measured / planned - 1) + ")" : text;
}

nlohmann::ordered_json Peaks(double planned, double measured) {
  return {{"planned_peak_bytes", static_cast<int64_t>(planned)},
          {"measured_peak_bytes", static_cast<int64_t>(measured)}};
}

}  // namespace

RunPlan PlanRun(RunFlags& flags, const std::function<int(const Rank&)>& train, const Corpus& corpus,
                const ProcessMemory& start) {
  const comm::Processes processes = ValueOrThrow(comm::StartedProcesses());
  if (processes.rank != 0) return {.why_not = "rank 0 has the plan"};
  const int num_ranks = processes.size > 1 ? processes.size : flags.ranks;
  if (flags.device != "cpu") return {.why_not = "only runs on CPUs are planned"};
  if (num_ranks > kMostRanks) {
    return {.why_not = internal::Concat("only runs of up to ", kMostRanks, " ranks are planned")};
  }
  rlimit addresses = {};
  if (getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY) {
    return {.why_not = "planning reserves addresses, and they are limited here (ulimit -v)"};
  }
  const RunFlags given = flags;
  flags.checkpoints = {};
  flags.report = flags.print_events = false;
  auto ranks = plan::DryRun(
      {.num_ranks = num_ranks, .threads_per_rank = flags.threads_per_rank},
      [&](comm::World& world) { train({.world = world, .corpus = corpus, .start = start}); });
  flags = given;
  if (!ranks.ok()) return {.why_not = Message(ranks.status())};
  return {.ranks = *std::move(ranks)};
}

PlanComparison ComparePlan(const RunPlan& plan, const comm::World& world) {
  const auto size = static_cast<size_t>(world.size());
  std::vector<double> measured(size * kNumFigures);
  const std::vector<double> mine = FiguresOf(world.context()->ledger().figures());
  std::ranges::copy(mine, measured.begin() + world.rank() * static_cast<int64_t>(kNumFigures));
  measured = SumOverRanks(world, measured);
  if (plan.ranks.size() != size)
    return {.text = "memory: not planned: " + plan.why_not, .json = {}};

  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  size_t largest = 0;
  double planned_peak = 0;
  const auto figure = [&](size_t rank, size_t f) { return measured[rank * kNumFigures + f]; };
  constexpr size_t kAll = kNumFigures - 1;
  for (size_t r = 0; r < size; ++r) {
    const std::vector<double> planned = FiguresOf(plan.ranks[r].memory);
    planned_peak = std::max(planned_peak, planned[kAll]);
    if (figure(r, kAll) > figure(largest, kAll)) largest = r;
    nlohmann::ordered_json rank = {{"rank", r}};
    rank.update(Peaks(planned[kAll], figure(r, kAll)));
    for (size_t f = 0; f < kAll; ++f) {
      rank["categories"][NameOf(f)] = Peaks(planned[f], figure(r, f));
    }
    ranks.push_back(std::move(rank));
  }
  nlohmann::ordered_json json = Peaks(planned_peak, figure(largest, kAll));
  json["ranks"] = std::move(ranks);

  const std::vector<double> planned = FiguresOf(plan.ranks[largest].memory);
  std::string text = "memory: " + Planned(planned[kAll], figure(largest, kAll));
  if (size > 1) text += " on rank " + std::to_string(largest);
  for (size_t f = 0; f < kAll; ++f) {
    if (planned[f] == 0 && figure(largest, f) == 0) continue;
    text += std::string("\n  ") + NameOf(f) + ": " + Planned(planned[f], figure(largest, f));
  }
  return {.text = std::move(text), .json = json.dump(1) + "\n"};
}

}  // namespace apogee::driver
