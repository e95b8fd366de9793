// SPDX-License-Identifier: Apache-2.0

#include <cstdio>
#include <optional>

#include "apogee/core/text/text.h"
#include "apogee/report/html.h"
#include "apogee/report/sections.h"

namespace apogee::report {
namespace {

std::string Fixed(const char* format, double value) {
  char text[60];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

// The bytes of one step by the formula of data parallelism, with b bytes in a parameter's element
// and g in a gradient's: DDP reduces g N, and ZeRO gathers b N, too. nullopt: no formula is known.
std::optional<double> Formula(const RunData& run, const std::string& collective) {
  if (!run.record || run.record->ranks < 2) return std::nullopt;
  const auto precision = run.record->options.find("precision");
  if (precision == run.record->options.end()) return std::nullopt;
  const bool is_f64 = precision->second == "f64", is_f32 = precision->second == "f32";
  const double b = is_f64 ? 8 : is_f32 ? 4 : 2, g = is_f64 ? 8 : 4;
  const auto n = static_cast<double>(run.record->parameters);
  if (run.record->plugin == "ddp" && collective == "all_reduce") return g * n;
  if (run.record->plugin != "low_level_zero") return std::nullopt;
  if (collective == "reduce_scatter") return g * n;
  if (collective == "all_gather") return b * n;
  return std::nullopt;
}

std::string TableOf(const RunData& run) {
  const TrafficRecord& traffic = *run.traffic;
  const auto steps = static_cast<double>(traffic.steps);
  HtmlTable table({"collective", "calls", "bytes", "calls per step", "bytes per step",
                   "per parameter", "formula", "difference"});
  for (const TrafficRecord::Row& row : traffic.rows) {
    const double per_step = static_cast<double>(row.bytes) / steps;
    const std::optional<double> formula = Formula(run, row.collective);
    const bool has_size = run.record && run.record->parameters > 0;
    table.Row(
        {HtmlText(row.collective), FormatThousands(row.calls), FormatBytes(row.bytes),
         Fixed("%.1f", static_cast<double>(row.calls) / steps),
         FormatBytes(static_cast<int64_t>(per_step)),
         has_size ? Fixed("%.3f", per_step / static_cast<double>(run.record->parameters)) : "–",
         formula ? FormatBytes(static_cast<int64_t>(*formula)) : "–",
         formula ? Fixed("%+.2f %%", 100 * (per_step / *formula - 1)) : "–"});
  }
  return table.Close();
}

}  // namespace

std::string TrafficSection(const Runs& runs) {
  std::string text = HtmlNote(
      "Counted on rank 0, from the end of the first step to the end of the last. Bytes are "
      "the payload of a call: the tensor, or the full tensor of reduce_scatter and "
      "all_gather. Formula, for plain data parallelism with N parameters: ddp all-reduces "
      "the gradients (4 N, in f64 8 N); ZeRO stages 1 and 2 reduce-scatter them and "
      "all-gather the values. The losses' and norms' few bytes, and checkpoints, come on "
      "top.");
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunData& run = runs[i];
    text += "<h3>" + RunName(runs, i) + "</h3>\n";
    if (!run.traffic) {
      text += HtmlNote("There is no traffic.json in " + run.path + ".");
    } else if (run.traffic->rows.empty()) {
      text += HtmlNote("There were no collectives.");
    } else {
      text += TableOf(run);
    }
  }
  return Section("traffic", "Traffic", text);
}

}  // namespace apogee::report
