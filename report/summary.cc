// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "apogee/core/text/text.h"
#include "apogee/report/charts/chart.h"
#include "apogee/report/html.h"
#include "apogee/report/sections.h"

namespace apogee::report {
namespace {

constexpr const char* kUnknown = "–";

std::string Loss(const std::vector<Point>& points) {
  if (points.empty() || !std::isfinite(points.back().y)) return kUnknown;
  char text[40];
  std::snprintf(text, sizeof(text), "%.4f", points.back().y);
  return text;
}

std::string Model(const RunData& run) {
  if (!run.record) return run.log.model.empty() ? kUnknown : HtmlText(run.log.model);
  return HtmlText(run.record->model) + ", " + FormatThousands(run.record->parameters) +
         " parameters";
}

std::string Peak(const RunData& run) {
  const auto total = run.memory.find("total");
  if (total == run.memory.end() || !(total->second >= 0 && total->second < 9e18)) return kUnknown;
  return FormatBytes(static_cast<int64_t>(total->second));
}

std::string Speed(const RunData& run) {
  if (!(run.mean_tokens_per_s > 0 && run.mean_tokens_per_s < 9e18)) return kUnknown;
  return FormatThousands(std::llround(run.mean_tokens_per_s));
}

// A row per option, a column per run. Those that differ come first, in bold.
std::string Options(const Runs& runs) {
  std::set<std::string> keys;
  for (const RunData& run : runs) {
    if (!run.record) continue;
    for (const auto& [key, value] : run.record->options) keys.insert(key);
  }
  if (keys.empty()) {
    return HtmlNote("The options of the runs are not recorded (run.json).");
  }
  std::vector<std::string> heads = {"option"};
  for (size_t i = 0; i < runs.size(); ++i) heads.push_back(RunName(runs, i));
  HtmlTable table(heads);
  const auto value = [](const RunData& run, const std::string& key) -> std::string {
    if (!run.record) return kUnknown;
    const auto it = run.record->options.find(key);
    return it == run.record->options.end() ? kUnknown : HtmlText(it->second);
  };
  for (const bool differ : {true, false}) {
    for (const std::string& key : keys) {
      std::vector<std::string> cells = {HtmlText(key)};
      for (const RunData& run : runs) cells.push_back(value(run, key));
      const bool differs = std::any_of(cells.begin() + 1, cells.end(),
                                       [&](const std::string& cell) { return cell != cells[1]; });
      if (differs != differ) continue;
      if (differs) {
        for (std::string& cell : cells) cell = "<b>" + cell + "</b>";
      }
      table.Row(cells);
    }
  }
  return "<details><summary>Options</summary>\n" + table.Close() + "</details>\n";
}

}  // namespace

std::string RunId(size_t run) { return internal::Concat("r", run); }

std::string RunName(const Runs& runs, size_t run) {
  return "<span class=\"name\"><span class=\"run " + RunClass(run) + "\"></span>" +
         HtmlText(runs[run].label) + "</span>";
}

std::string Section(const std::string& id, const std::string& title, const std::string& contents) {
  return "<section id=\"" + id + "\">\n<h2>" + title + "</h2>\n" + contents + "</section>\n";
}

std::string SummarySection(const Runs& runs) {
  HtmlTable table({"run", "model", "plugin", "ranks", "steps", "loss", "validation loss",
                   "tokens/s", "peak memory, rank 0"});
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunData& run = runs[i];
    table.Row({RunName(runs, i), Model(run), run.record ? HtmlText(run.record->plugin) : kUnknown,
               run.record ? std::to_string(run.record->ranks) : kUnknown,
               FormatThousands(static_cast<int64_t>(run.loss.back().x)), Loss(run.loss),
               Loss(run.validation_loss), Speed(run), Peak(run)});
  }
  return Section("runs", runs.size() == 1 ? "Run" : "Runs", table.Close() + Options(runs));
}

}  // namespace apogee::report
