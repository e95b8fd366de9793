// SPDX-License-Identifier: Apache-2.0

// Axis: maps values to pixels, and chooses round values for its ticks.
//
//   const Axis y({.begin = 0.5, .end = 3}, {.begin = 200, .end = 10}, /*is_log=*/false);
//   y.ToPixels(1.0);
//   for (const double value : y.Ticks(5)) ...
#ifndef APOGEE_REPORT_CHARTS_AXIS_H_
#define APOGEE_REPORT_CHARTS_AXIS_H_

#include <vector>

#include "apogee/report/charts/thin.h"

namespace apogee::report {

class Axis {
 public:
  // With is_log the values must be above 0. An empty range is widened.
  Axis(Range values, Range pixels, bool is_log);

  const Range& values() const { return values_; }
  bool is_log() const { return is_log_; }
  double ToPixels(double value) const;
  // About `count` round values inside the range, in order. `whole`: whole numbers only.
  std::vector<double> Ticks(int count, bool whole = false) const;

 private:
  Range values_, pixels_;
  bool is_log_;
};

}  // namespace apogee::report

#endif  // APOGEE_REPORT_CHARTS_AXIS_H_
