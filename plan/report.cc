// SPDX-License-Identifier: Apache-2.0

// A plan as text and as JSON.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apogee/core/text/text.h"
#include "apogee/plan/plan.h"

namespace apogee::plan {
namespace {

using Cells = std::vector<std::string>;

int64_t Slack(const MemoryFigures& memory) {
  return memory.peak_reserved_bytes - memory.peak_total_bytes;
}

int64_t Peak(const MemoryFigures& memory, MemoryCategory category) {
  return memory.peak_bytes[static_cast<size_t>(category)];
}

Cells CellsOf(const PlanRow& row, bool knows_device) {
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
  if (knows_device) cells.emplace_back(row.fits ? "yes" : "no");
  return cells;
}

std::string Aligned(const std::vector<Cells>& rows) {
  std::vector<size_t> widths;
  for (const Cells& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Cells& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      text += (c == 0 ? "" : "  ") + (c == 0 ? row[c] + padding : padding + row[c]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

// "" if nothing was measured.
std::string Comparison(const PlanReport& report) {
  std::vector<Cells> table = {{"plugin", "rank", "planned", "measured", "difference"}};
  for (const PlanRow& row : report.rows) {
    for (size_t r = 0; r < row.measured.size(); ++r) {
      const int64_t planned = row.ranks[r].memory.peak_reserved_bytes;
      const int64_t measured = row.measured[r].memory.peak_reserved_bytes;
      table.push_back(
          {row.candidate.name, std::to_string(row.ranks[r].rank), FormatBytes(planned),
           FormatBytes(measured),
           FormatChange(static_cast<double>(measured) / static_cast<double>(planned) - 1)});
    }
  }
  return table.size() == 1 ? "" : "\nPeaks of a real run:\n\n" + Aligned(table);
}

std::string Describe(const PlanReport& report) {
  const TrainingSetup& setup = report.setup;
  return internal::Concat(
      setup.model, ", ", FormatThousands(report.num_parameters), " parameters, ",
      Name(setup.training.precision), ", ", setup.optimizer, "; ", report.options.num_ranks,
      report.options.num_ranks == 1 ? " rank" : " ranks", "; a step has ", setup.batch,
      " samples of ", FormatThousands(setup.tokens), " tokens",
      setup.accumulate > 1 ? internal::Concat(" in ", setup.accumulate, " micro-batches") : "",
      setup.recompute ? ", recompute" : "", "\n");
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
  json["ledger_peak_bytes"] = row.largest.memory.peak_total_bytes;
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    json["categories"][MemoryCategoryName(category)] = Peak(row.largest.memory, category);
  }
  json["categories"]["slack"] = Slack(row.largest.memory);
  json["collectives_per_step"] = row.collectives;
  json["bytes_per_step"] = row.bytes;
  for (const RankPlan& rank : row.ranks) {
    json["ranks"].push_back({{"rank", rank.rank}, {"peak_bytes", rank.memory.peak_reserved_bytes}});
  }
  json["code"] = CodeOf(row.candidate, setup);
  return json;
}

}  // namespace

std::string TableOf(const PlanReport& report) {
  const bool knows_device = report.options.device_bytes > 0;
  std::vector<Cells> table = {{"plugin", "peak", "parameters", "gradients", "states", "activations",
                               "messages", "workspace", "cached", "collectives", "sent"}};
  if (knows_device) table[0].push_back("fits " + FormatBytes(report.options.device_bytes));
  std::string refused;
  for (const PlanRow& row : report.rows) {
    if (row.refusal.empty()) {
      table.push_back(CellsOf(row, knows_device));
    } else {
      refused += row.candidate.name + ": " + row.refusal + "\n";
    }
  }
  std::string text = Describe(report) + "\n" + Aligned(table) +
                     "\nMemory of the rank that needs most. Collectives and sent bytes: of a rank "
                     "in a step. Pipelines (pp) take a sample at a time.\n";
  if (!refused.empty()) text += "\nLeft out:\n" + refused;
  text += Comparison(report);
  const auto first = std::ranges::find_if(report.rows, &PlanRow::fits);
  if (first != report.rows.end()) {
    text += "\n" + first->candidate.name + ":\n\n" + CodeOf(first->candidate, report.setup);
  } else if (!report.change.empty()) {
    text += "\nNothing fits as it is. It fits with " + report.change + ": " +
            report.changed_row.candidate.name + ", peak " +
            FormatBytes(report.changed_row.peak_bytes()) + ":\n\n" +
            CodeOf(report.changed_row.candidate, report.changed);
  } else {
    text +=
        "\nNothing fits, not even with recompute, accumulation, offload or 8 times the ranks.\n";
  }
  return text;
}

std::string JsonOf(const PlanReport& report) {
  nlohmann::ordered_json json = {{"model", report.setup.model},
                                 {"parameters", report.num_parameters},
                                 {"num_ranks", report.options.num_ranks},
                                 {"device_bytes", report.options.device_bytes},
                                 {"batch", report.setup.batch},
                                 {"tokens", report.setup.tokens},
                                 {"accumulate", report.setup.accumulate},
                                 {"recompute", report.setup.recompute},
                                 {"precision", Name(report.setup.training.precision)},
                                 {"optimizer", report.setup.optimizer}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const PlanRow& row : report.rows) json["rows"].push_back(JsonOf(row, report.setup));
  if (!report.change.empty()) {
    json["change"] = report.change;
    json["changed_row"] = JsonOf(report.changed_row, report.changed);
  }
  return json.dump(2) + "\n";
}

}  // namespace apogee::plan
