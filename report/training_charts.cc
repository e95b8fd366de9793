// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "apogee/report/charts/chart.h"
#include "apogee/report/html.h"
#include "apogee/report/sections.h"

namespace apogee::report {
namespace {

using Values = std::vector<Point> RunData::*;

std::vector<ChartLine> LinesOf(const Runs& runs, Values values) {
  std::vector<ChartLine> lines;
  for (size_t i = 0; i < runs.size(); ++i) {
    lines.push_back({.label = runs[i].label, .run = i, .points = runs[i].*values});
  }
  return lines;
}

std::string LossChart(const Runs& runs) {
  Chart chart{.title = "Loss", .lines = LinesOf(runs, &RunData::loss), .is_wide = true};
  bool has_validations = false, has_events = false;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].validation_loss.empty()) {
      has_validations = true;
      chart.lines.push_back({.label = runs[i].label + ", validation",
                             .run = i,
                             .points = runs[i].validation_loss,
                             .has_marks = true});
    }
    ChartTicks ticks{.label = runs[i].label + " skipped", .run = i, .steps = {}};
    for (const RunLog::Skipped& skipped : runs[i].log.skipped) {
      ticks.steps.push_back(static_cast<double>(skipped.step));
    }
    has_events = has_events || !ticks.steps.empty();
    chart.ticks.push_back(std::move(ticks));
  }
  if (has_validations) chart.title += "; dashed, with marks: validation";
  if (has_events) chart.title += "; ticks on the axis: skipped steps";
  return ChartSvg(chart);
}

std::string ChartOf(const Runs& runs, const std::string& title, Values values,
                    bool may_be_log = false) {
  return ChartSvg({.title = title, .lines = LinesOf(runs, values), .may_be_log = may_be_log});
}

std::string Legend(const Runs& runs) {
  std::string legend = "<p class=\"legend\">";
  for (size_t i = 0; i < runs.size(); ++i) {
    legend += "<span class=\"entry\">" + RunName(runs, i) + "</span> ";
  }
  return legend + "</p>\n";
}

}  // namespace

std::string TrainingSection(const Runs& runs) {
  const std::string share = ChartOf(runs, "Share of the device's peak", &RunData::share_of_peak);
  std::string missing;
  if (share.empty()) missing = "No run recorded its share of the device's peak. ";
  const std::string norm = ChartOf(runs, "Gradient norm", &RunData::grad_norm, true);
  if (norm.empty()) missing += "No run recorded the gradients' norm. ";
  return Section("training", "Training",
                 Legend(runs) + "<div class=\"charts\">\n" + LossChart(runs) +
                     ChartOf(runs, "Learning rate", &RunData::lr) + norm +
                     ChartOf(runs, "Tokens per second", &RunData::tokens_per_s) + share +
                     "</div>\n" + (missing.empty() ? "" : HtmlNote(missing)));
}

}  // namespace apogee::report
