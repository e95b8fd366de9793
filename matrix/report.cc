// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/report.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "apogee/core/text/text.h"

namespace apogee::matrix {
namespace {

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "pass";
    case Verdict::kFail:
      return "fail";
    case Verdict::kRefused:
      return "refused";
  }
  return "?";
}

int64_t Count(const std::vector<CellReport>& reports, Verdict verdict) {
  return std::ranges::count(reports, verdict, &CellReport::verdict);
}

std::string Scientific(double value) {
  std::ostringstream text;
  text << std::setprecision(2) << value;
  return text.str();
}

// The tables' entry for one optimizer with one plugin.
struct Summary {
  int64_t passed = 0, failed = 0, refused = 0;
  // The largest error of "fed" in f32 and f64, and of models in f64.
  double fed_f32 = 0, fed_f64 = 0, model_f64 = 0;
  // By world: "fed" in f32, accumulation 1, no clipping.
  std::map<int, CellReport> plain;

  void Add(const CellReport& report) {
    passed += report.verdict == Verdict::kPass;
    failed += report.verdict == Verdict::kFail;
    refused += report.verdict == Verdict::kRefused;
    if (report.verdict == Verdict::kRefused) return;
    const Cell& cell = report.cell;
    const bool fed = cell.workload == "fed";
    if (cell.precision == "f64") {
      double& worst = fed ? fed_f64 : model_f64;
      worst = std::max(worst, report.error);
    } else if (fed) {
      fed_f32 = std::max(fed_f32, report.error);
    }
    if (fed && cell.precision == "f32" && cell.accumulate == 1 && !cell.clip) {
      plain.emplace(cell.world, report);
    }
  }
};

// The values of `fn` for worlds 1, 2, … as "a, b, …"; a single value if all are equal.
template <typename Fn>
std::string PerWorld(const Summary& summary, const Fn& fn) {
  std::vector<std::string> texts;
  for (const auto& [world, report] : summary.plain) texts.push_back(fn(report));
  if (texts.empty()) return "";
  if (std::ranges::all_of(texts, [&](const std::string& text) { return text == texts[0]; })) {
    return texts[0];
  }
  return JoinTexts(texts, ", ");
}

std::string StatePerParameter(const CellReport& report) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2)
       << static_cast<double>(report.state_bytes) / static_cast<double>(report.num_parameters);
  return text.str();
}

std::string Cells(const Summary& summary) {
  std::string text = std::to_string(summary.passed) + " passed";
  if (summary.failed > 0) text += ", **" + std::to_string(summary.failed) + " failed**";
  if (summary.refused > 0) text += ", " + std::to_string(summary.refused) + " refused";
  return text;
}

}  // namespace

void WriteJson(const std::vector<CellReport>& reports, std::ostream& out) {
  nlohmann::ordered_json cells = nlohmann::ordered_json::array();
  for (const CellReport& report : reports) {
    nlohmann::ordered_json cell = {{"name", report.cell.name()},
                                   {"verdict", VerdictName(report.verdict)},
                                   {"error", report.error},
                                   {"bound", report.bound},
                                   {"parameter", report.parameter},
                                   {"collectives_per_step", report.collectives},
                                   {"bytes_per_step", report.bytes},
                                   {"state_bytes_per_rank", report.state_bytes},
                                   {"num_parameters", report.num_parameters}};
    if (!report.detail.empty()) cell["detail"] = report.detail;
    cells.push_back(std::move(cell));
  }
  const nlohmann::ordered_json root = {{"cells", std::move(cells)},
                                       {"passed", Count(reports, Verdict::kPass)},
                                       {"failed", Count(reports, Verdict::kFail)},
                                       {"refused", Count(reports, Verdict::kRefused)}};
  out << root.dump(1) << "\n";
}

void WriteMarkdown(const std::vector<CellReport>& reports, std::ostream& out) {
  std::vector<std::string> optimizers, plugins;
  std::map<std::pair<std::string, std::string>, Summary> summaries;
  std::map<std::pair<std::string, std::string>, std::set<std::string>> refusals;
  const auto remember = [](std::vector<std::string>& names, const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  for (const CellReport& report : reports) {
    remember(optimizers, report.cell.optimizer);
    remember(plugins, report.cell.plugin);
    summaries[{report.cell.plugin, report.cell.optimizer}].Add(report);
    if (report.verdict == Verdict::kRefused) {
      refusals[{report.cell.optimizer, report.detail}].insert(report.cell.plugin);
    }
  }
  for (const std::string& plugin : plugins) {
    out << "## " << plugin << "\n\n"
        << "| optimizer | cells | error, f32 fed | f64 fed | f64 models | collectives per step | "
           "bytes per step | state bytes per parameter |\n"
        << "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for (const std::string& optimizer : optimizers) {
      const auto found = summaries.find({plugin, optimizer});
      if (found == summaries.end()) continue;
      const Summary& summary = found->second;
      out << "| `" << optimizer << "` | " << Cells(summary) << " | " << Scientific(summary.fed_f32)
          << " | " << Scientific(summary.fed_f64) << " | " << Scientific(summary.model_f64) << " | "
          << PerWorld(summary, [](const CellReport& r) { return std::to_string(r.collectives); })
          << " | " << PerWorld(summary, [](const CellReport& r) { return std::to_string(r.bytes); })
          << " | " << PerWorld(summary, &StatePerParameter) << " |\n";
    }
    out << "\n";
  }
  if (refusals.empty()) return;
  out << "## Refused\n\n";
  for (const auto& [refusal, names] : refusals) {
    out << "- `" << refusal.first << "` with accumulation, under";
    for (const std::string& name : names) out << (name == *names.begin() ? " " : ", ") << name;
    out << ": \"" << refusal.second << "\"\n";
  }
}

}  // namespace apogee::matrix
