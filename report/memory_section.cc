// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <optional>

#include "apogee/core/memory.h"
#include "apogee/core/text/text.h"
#include "apogee/pictures/svg_writer.h"
#include "apogee/report/html.h"
#include "apogee/report/sections.h"

namespace apogee::report {
namespace {

// In pixels.
constexpr double kBars = 320, kBarHeight = 8;
constexpr size_t kMostRanks = 64;

struct Bytes {
  std::string name;
  std::optional<int64_t> planned;
  int64_t measured = 0;
};

// "+0.7 %".
std::string Difference(const Bytes& bytes) {
  if (!bytes.planned || *bytes.planned == 0) return "–";
  return FormatChange(static_cast<double>(bytes.measured) / static_cast<double>(*bytes.planned) -
                      1);
}

// The planned bytes above the measured ones.
std::string Bars(const Bytes& bytes, int64_t most) {
  SvgWriter svg;
  double y = 0;
  const auto bar = [&](int64_t value, const std::string& kind) {
    svg.Rect(
        {0, y, kBars * static_cast<double>(value) / static_cast<double>(std::max<int64_t>(most, 1)),
         kBarHeight},
        "class=\"" + kind + "\" data-name=\"" + HtmlText(bytes.name) + "\" data-bytes=\"" +
            std::to_string(value) + "\"",
        kind + ": " + FormatThousands(value) + " bytes");
    y += kBarHeight + 1;
  };
  if (bytes.planned) bar(*bytes.planned, "planned");
  bar(bytes.measured, "measured");
  return svg.Inline(kBars, y, "class=\"bars\"");
}

std::string TableOf(const std::string& first, const std::vector<Bytes>& rows) {
  int64_t most = 0;
  for (const Bytes& row : rows) {
    most = std::max({most, row.planned.value_or(0), row.measured});
  }
  const bool has_plan = rows[0].planned.has_value();
  HtmlTable table(has_plan
                      ? std::vector<std::string>{first, "planned", "measured", "difference", ""}
                      : std::vector<std::string>{first, "measured", ""});
  for (const Bytes& row : rows) {
    std::vector<std::string> cells = {HtmlText(row.name), FormatBytes(row.measured),
                                      Bars(row, most)};
    if (has_plan) {
      cells.insert(cells.begin() + 1, FormatBytes(*row.planned));
      cells.insert(cells.begin() + 3, Difference(row));
    }
    table.Row(cells);
  }
  return table.Close();
}

std::string Planned(const MemoryPlan& plan) {
  const RankPlan& fullest = plan.fullest();
  std::vector<Bytes> rows;
  for (const PlannedCategory& category : fullest.categories) {
    rows.push_back({category.name, category.peak.planned, category.peak.measured});
  }
  rows.push_back({"peak", fullest.peak.planned, fullest.peak.measured});
  const Bytes all = {"", plan.peak.planned, plan.peak.measured};
  std::string text = "<p>Planned " + FormatBytes(plan.peak.planned) + ", measured " +
                     FormatBytes(plan.peak.measured) + " (" + Difference(all) + ").</p>\n";
  const std::string rank = "rank " + std::to_string(fullest.rank);
  text += TableOf(plan.ranks.size() == 1 ? rank : rank + ", the fullest", rows);
  if (plan.ranks.size() == 1) return text;
  std::vector<Bytes> ranks;
  for (size_t i = 0; i < std::min(kMostRanks, plan.ranks.size()); ++i) {
    const RankPlan& each = plan.ranks[i];
    ranks.push_back({std::to_string(each.rank), each.peak.planned, each.peak.measured});
  }
  text += "<details><summary>Peak of each rank</summary>\n" + TableOf("rank", ranks);
  if (plan.ranks.size() > kMostRanks) {
    text += HtmlNote("The first " + std::to_string(kMostRanks) + " of " +
                     std::to_string(plan.ranks.size()) + " ranks.");
  }
  return text + "</details>\n";
}

// The ledger's categories in its order, then whatever else the rows have.
std::string Measured(const RunData& run) {
  std::vector<std::string> names;
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    names.emplace_back(MemoryCategoryName(static_cast<MemoryCategory>(i)));
  }
  names.emplace_back("total");
  for (const auto& [name, bytes] : run.memory) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  std::vector<Bytes> rows;
  for (const std::string& name : names) {
    const auto it = run.memory.find(name);
    if (it == run.memory.end() || !(it->second >= 0 && it->second < 9e18)) continue;
    rows.push_back({name, std::nullopt, static_cast<int64_t>(it->second)});
  }
  if (rows.empty()) return HtmlNote("The run recorded no memory.");
  return HtmlNote("There is no plan.json in " + run.path +
                  ", so nothing is known about planned memory. Measured on rank 0:") +
         TableOf("rank 0", rows);
}

}  // namespace

std::string MemorySection(const Runs& runs) {
  std::string text = HtmlNote(
      "Peaks. Those of the categories may be at different moments, so they can add up to "
      "more than the peak of all.");
  text += "<div class=\"pairs\">\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    text += "<div><h3>" + RunName(runs, i) + "</h3>\n" +
            (runs[i].plan ? Planned(*runs[i].plan) : Measured(runs[i])) + "</div>\n";
  }
  return Section("memory", "Memory", text + "</div>\n");
}

}  // namespace apogee::report
