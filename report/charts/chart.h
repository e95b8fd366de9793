// SPDX-License-Identifier: Apache-2.0

// ChartSvg: lines over steps, as SVG for a page.
//
//   Chart chart{.title = "Loss", .lines = {{.label = "out", .run = 0, .points = run.loss}}};
//   std::string markup = ChartSvg(chart);
//
// The colour of a line is that of its run, from the page's style. Lines are thinned (thin.h). For
// programs, the <svg> has the place of the axes: data-left, data-top, data-width and data-height in
// pixels, data-x-begin, data-x-end, data-y-begin and data-y-end in values, and data-log if the
// axis of y is logarithmic (the values are still those of y). Each <polyline> has data-label, the
// name of its line. The script of the page (style.h) shows the values under the pointer from these.
#ifndef APOGEE_REPORT_CHARTS_CHART_H_
#define APOGEE_REPORT_CHARTS_CHART_H_

#include <cstddef>
#include <string>
#include <vector>

#include "apogee/report/charts/thin.h"

namespace apogee::report {

struct ChartLine {
  std::string label;
  size_t run = 0;  // the place of its run in the report
  std::vector<Point> points;
  bool has_marks = false;  // few points: each gets a mark, and the line is dashed
};
// Steps to mark below the axis of a chart.
struct ChartTicks {
  std::string label;  // for the tooltip: "skipped"
  size_t run = 0;
  std::vector<double> steps;
};

struct Chart {
  std::string title;
  std::vector<ChartLine> lines;
  std::vector<ChartTicks> ticks = {};
  bool is_wide = false;
  // If the values are all above 0 and the highest is far above most of them.
  bool may_be_log = false;
};

// "" if no line has a finite point.
std::string ChartSvg(const Chart& chart);

// "1.5", "2.3e-05", "12.5k", "3M".
std::string ShortNumber(double value);
// The class of a run's colour: "run0" to "run7", then from the start, dashed.
std::string RunClass(size_t run);

}  // namespace apogee::report

#endif  // APOGEE_REPORT_CHARTS_CHART_H_
