// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/charts/axis.h"

#include <algorithm>
#include <cmath>

namespace apogee::report {

Axis::Axis(Range values, Range pixels, bool is_log)
    : values_(values), pixels_(pixels), is_log_(is_log) {
  // Rounding must not put two ends onto one value.
  const double least = std::max(std::abs(values_.begin), std::abs(values_.end)) * 1e-9;
  if (values_.end - values_.begin > least) return;
  const double half = values_.begin == 0 ? 0.5 : std::abs(values_.begin) / 2;
  values_ = {values_.begin - half, values_.end + half};
}

double Axis::ToPixels(double value) const {
  const auto map = [this](double v) { return is_log_ ? std::log(v) : v; };
  const double share = (map(value) - map(values_.begin)) / (map(values_.end) - map(values_.begin));
  return pixels_.begin + share * (pixels_.end - pixels_.begin);
}

std::vector<double> Axis::Ticks(int count, bool whole) const {
  std::vector<double> ticks;
  if (is_log_) {
    const double first = std::ceil(std::log10(values_.begin) - 1e-9);
    const double last = std::floor(std::log10(values_.end) + 1e-9);
    const double step = std::max(1.0, std::ceil((last - first) / count));
    for (double power = first; power <= last; power += step) ticks.push_back(std::pow(10, power));
    if (ticks.size() >= 2) return ticks;
    ticks.clear();  // less than a power of ten: as on a linear axis
  }
  const double rough = (values_.end - values_.begin) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power * 10;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (power * factor >= rough) step = power * factor;
  }
  if (whole) step = std::max(step, 1.0);
  for (double n = std::ceil(values_.begin / step - 1e-9); n * step <= values_.end + step * 1e-9;
       ++n) {
    ticks.push_back(n == 0 ? 0 : n * step);
  }
  return ticks;
}

}  // namespace apogee::report
