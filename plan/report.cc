// SPDX-License-Identifier: Apache-2.0

// A plan as text and as JSON.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apogee/core/text/text.h"
#include "apogee/plan/plan.h"
#include "apogee/plan/table.h"

namespace apogee::plan {
namespace {

int64_t Slack(const MemoryFigures& memory) {
  return memory.peak_reserved_bytes - memory.peak_total_bytes;
}

int64_t Peak(const MemoryFigures& memory, MemoryCategory category) {
  return memory.peak_bytes[static_cast<size_t>(category)];
}

Cells CellsOf(const PlanRow& row, const PlanReport& report) {
  const MemoryFigures& memory = row.largest.memory;
  Cells cells = {row.candidate.name, FormatBytes(row.peak_bytes())};
  for (const MemoryCategory category :
       {MemoryCategory::kParameter, MemoryCategory::kGradient, MemoryCategory::kOptimizerState,
        MemoryCategory::kActivation, MemoryCategory::kCommunication, MemoryCategory::kWorkspace}) {
    cells.push_back(FormatBytes(Peak(memory, category)));
  }
  cells.push_back(FormatBytes(Slack(memory)));
  cells.push_back(FormatThousands(row.collectives));
  cells.push_back(FormatBytes(row.bytes));
  if (report.options.machine) cells.push_back(FormatSeconds(row.step_seconds));
  if (report.options.device_bytes > 0) cells.emplace_back(row.fits ? "yes" : "no");
  return cells;
}

// "" if nothing was measured.
std::string Comparison(const PlanReport& report) {
  std::vector<Cells> peaks = {{"plugin", "rank", "planned", "measured", "difference"}};
  std::vector<Cells> steps = {{"plugin", "planned", "measured", "difference"}};
  const auto change = [](double measured, double planned) {
    return FormatChange(measured / planned - 1);
  };
  for (const PlanRow& row : report.rows) {
    for (size_t r = 0; r < row.measured.size(); ++r) {
      const int64_t planned = row.ranks[r].memory.peak_reserved_bytes;
      const int64_t measured = row.measured[r].memory.peak_reserved_bytes;
      peaks.push_back({row.candidate.name, std::to_string(row.ranks[r].rank), FormatBytes(planned),
                       FormatBytes(measured),
                       change(static_cast<double>(measured), static_cast<double>(planned))});
    }
    if (row.measured_process_bytes > 0) {
      peaks.push_back({row.candidate.name, "all", FormatBytes(row.total_bytes),
                       FormatBytes(row.measured_process_bytes),
                       change(static_cast<double>(row.measured_process_bytes),
                              static_cast<double>(row.total_bytes))});
    }
    if (row.measured_step_seconds > 0) {
      steps.push_back({row.candidate.name, FormatSeconds(row.step_seconds),
                       FormatSeconds(row.measured_step_seconds),
                       change(row.measured_step_seconds, row.step_seconds)});
    }
  }
  std::string text;
  if (peaks.size() > 1) text += "\nPeaks of a real run:\n\n" + Aligned(peaks);
  if (steps.size() > 1) text += "\nSteps of a real run, medians:\n\n" + Aligned(steps);
  return text;
}

// A line on failures matters for worlds of this size.
constexpr int kRanksThatFail = 64;

std::string Failures(const PlanRow& row, const PlanReport& report) {
  const Reliability failures = ReliabilityOf(row, report.options);
  return internal::Concat(
      "\nFailures: with ", FormatThousands(report.options.num_ranks), " ranks, one every ",
      FormatSeconds(failures.mttf_seconds), " (a rank fails every ",
      FormatSeconds(report.options.reliability.rank_mttf_seconds), "). Save every ",
      FormatSeconds(failures.interval_seconds), " if a save stops training for ",
      FormatSeconds(failures.save_seconds), "; saves, repeated steps and restarts then take ",
      FormatPercent(failures.lost), " of the time.\n");
}

nlohmann::ordered_json JsonOf(const RankPlan& rank) {
  nlohmann::ordered_json json = {{"rank", rank.rank},
                                 {"peak_bytes", rank.memory.peak_reserved_bytes},
                                 {"ledger_peak_bytes", rank.memory.peak_total_bytes}};
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    json["categories"][MemoryCategoryName(category)] = Peak(rank.memory, category);
  }
  return json;
}

nlohmann::ordered_json JsonOf(const PlanRow& row, const TrainingSetup& setup) {
  nlohmann::ordered_json json = {{"name", row.candidate.name},
                                 {"plugin", row.candidate.plugin},
                                 {"options", row.candidate.options},
                                 {"num_ranks", row.candidate.num_ranks}};
  if (!row.refusal.empty()) {
    json["refusal"] = row.refusal;
    return json;
  }
  json["fits"] = row.fits;
  json["peak_bytes"] = row.peak_bytes();
  json["total_bytes"] = row.total_bytes;
  json["ledger_peak_bytes"] = row.largest.memory.peak_total_bytes;
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    json["categories"][MemoryCategoryName(category)] = Peak(row.largest.memory, category);
  }
  json["categories"]["slack"] = Slack(row.largest.memory);
  json["collectives_per_step"] = row.collectives;
  json["bytes_per_step"] = row.bytes;
  json["flops_per_step"] = row.flops;
  if (row.step_seconds > 0) json["step_seconds"] = row.step_seconds;
  if (row.measured_step_seconds > 0) json["measured_step_seconds"] = row.measured_step_seconds;
  for (const RankPlan& rank : row.ranks) json["ranks"].push_back(JsonOf(rank));
  if (row.measured_process_bytes > 0) json["measured_process_bytes"] = row.measured_process_bytes;
  for (const RankPlan& rank : row.measured) json["measured_ranks"].push_back(JsonOf(rank));
  json["code"] = CodeOf(row.candidate, setup);
  return json;
}

}  // namespace

std::string Describe(const TrainingSetup& setup) {
  return internal::Concat(
      setup.model, ", ",
      setup.make_model
          ? FormatThousands(setup.make_model(false)->num_parameters()) + " parameters, "
          : "",
      Name(setup.training.precision), ", ", setup.optimizer, "; a step has ", setup.batch,
      " samples of ", FormatThousands(setup.tokens), " tokens",
      setup.accumulate > 1 ? internal::Concat(" in ", setup.accumulate, " micro-batches") : "",
      setup.recompute ? ", recompute" : "",
      setup.lora ? internal::Concat(", an adapter of rank ", setup.lora->rank) : "",
      setup.lora && setup.lora->quantize
          ? internal::Concat(" on weights in ", nn::Name(setup.lora->quantize->kind))
          : "",
      "\n", setup.assumption.empty() ? "" : "assumed: " + setup.assumption + "\n");
}

std::string TableOf(const PlanReport& report) {
  std::vector<Cells> table = {{"plugin", "peak", "parameters", "gradients", "states", "activations",
                               "messages", "workspace", "cached", "collectives", "sent"}};
  if (report.options.machine) table[0].emplace_back("step");
  if (report.options.device_bytes > 0) {
    table[0].push_back("fits " + FormatBytes(report.options.device_bytes));
  }
  std::string refused;
  for (const PlanRow& row : report.rows) {
    if (row.refusal.empty()) {
      table.push_back(CellsOf(row, report));
    } else {
      refused += row.candidate.name + ": " + row.refusal + "\n";
    }
  }
  const int num_ranks = report.options.num_ranks;
  std::string text = FormatThousands(num_ranks) + (num_ranks == 1 ? " rank: " : " ranks: ") +
                     Describe(report.setup) + "\n" + Aligned(table) +
                     "\nMemory of the rank that needs most. Collectives and sent bytes: of a rank "
                     "in a step. Pipelines (pp) take a sample at a time.\n";
  if (!refused.empty()) text += "\nLeft out:\n" + refused;
  text += Comparison(report);
  if (report.options.machine) {
    text += "Steps: simulated with the rates of " + report.options.machine->name + ".\n";
  }
  if (const PlanRow* best = report.best()) {
    if (report.options.num_ranks >= kRanksThatFail) text += Failures(*best, report);
    text += "\n" + best->candidate.name + ":\n\n" + CodeOf(best->candidate, report.setup);
  } else if (!report.change.empty()) {
    text += "\nNothing fits as it is. It fits with " + report.change + ": " +
            report.changed_row.candidate.name + ", peak " +
            FormatBytes(report.changed_row.peak_bytes()) + ":\n\n" +
            CodeOf(report.changed_row.candidate, report.changed);
  } else {
    text +=
        "\nNothing fits, not even with recompute, accumulation, offload, an adapter or 8 times the "
        "ranks.\n";
  }
  return text;
}

std::string JsonOf(const PlanReport& report) {
  nlohmann::ordered_json json = {{"model", report.setup.model},
                                 {"assumption", report.setup.assumption},
                                 {"parameters", report.num_parameters},
                                 {"num_ranks", report.options.num_ranks},
                                 {"device_bytes", report.options.device_bytes},
                                 {"batch", report.setup.batch},
                                 {"tokens", report.setup.tokens},
                                 {"accumulate", report.setup.accumulate},
                                 {"recompute", report.setup.recompute},
                                 {"lora_rank", report.setup.lora ? report.setup.lora->rank : 0},
                                 {"precision", Name(report.setup.training.precision)},
                                 {"optimizer", report.setup.optimizer}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const PlanRow& row : report.rows) json["rows"].push_back(JsonOf(row, report.setup));
  if (const PlanRow* best = report.best()) {
    const Reliability failures = ReliabilityOf(*best, report.options);
    json["best"] = best->candidate.name;
    json["reliability"] = {{"mttf_seconds", failures.mttf_seconds},
                           {"save_seconds", failures.save_seconds},
                           {"save_interval_seconds", failures.interval_seconds},
                           {"lost_share", failures.lost}};
  }
  if (!report.change.empty()) {
    json["change"] = report.change;
    json["changed_row"] = JsonOf(report.changed_row, report.changed);
  }
  return json.dump(2) + "\n";
}

}  // namespace apogee::plan
