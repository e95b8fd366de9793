// SPDX-License-Identifier: Apache-2.0

// Thin: reduces the points of a line to those that its picture needs.
//
//   std::vector<std::vector<Point>> lines = Thin(points, {.begin = 1, .end = 10000}, 500);
//
// Cuts the range of x into `columns` equal columns, one per pixel. Of each column's points it keeps
// the first, the lowest, the highest and the last, in their order, so a line through them fills the
// same pixels: no spike is lost. A point that is not finite ends a line; the next one begins
// another.
#ifndef APOGEE_REPORT_CHARTS_THIN_H_
#define APOGEE_REPORT_CHARTS_THIN_H_

#include <vector>

namespace apogee::report {

struct Point {
  double x = 0, y = 0;
};
struct Range {
  double begin = 0, end = 1;
};

// `points` must be sorted by x.
std::vector<std::vector<Point>> Thin(const std::vector<Point>& points, const Range& range,
                                     int columns);

}  // namespace apogee::report

#endif  // APOGEE_REPORT_CHARTS_THIN_H_
