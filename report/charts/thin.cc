// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/charts/thin.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace apogee::report {
namespace {

// The points [begin, end) of one column, thinned.
void AddColumn(const std::vector<Point>& points, size_t begin, size_t end,
               std::vector<Point>& line) {
  size_t low = begin, high = begin;
  for (size_t i = begin; i < end; ++i) {
    if (points[i].y < points[low].y) low = i;
    if (points[i].y > points[high].y) high = i;
  }
  size_t last = end;  // the last that was added; none yet
  for (const size_t i : {begin, std::min(low, high), std::max(low, high), end - 1}) {
    if (i != last) line.push_back(points[i]);
    last = i;
  }
}

}  // namespace

std::vector<std::vector<Point>> Thin(const std::vector<Point>& points, const Range& range,
                                     int columns) {
  const double scale = columns / (range.end - range.begin);
  const auto column = [&](const Point& point) {
    return std::floor((point.x - range.begin) * scale);
  };
  std::vector<std::vector<Point>> lines;
  bool goes_on = false;
  for (size_t begin = 0; begin < points.size();) {
    if (!std::isfinite(points[begin].y)) {
      goes_on = false;
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < points.size() && std::isfinite(points[end].y) &&
           column(points[end]) == column(points[begin])) {
      ++end;
    }
    if (!goes_on) lines.emplace_back();
    goes_on = true;
    AddColumn(points, begin, end, lines.back());
    begin = end;
  }
  return lines;
}

}  // namespace apogee::report
