// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/charts/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/pictures/svg_writer.h"
#include "apogee/report/charts/axis.h"
#include "apogee/report/html.h"

namespace apogee::report {
namespace {

// In pixels.
constexpr double kLeft = 58, kRight = 14, kTop = 34, kBottom = 30;
constexpr double kWide = 1128, kNarrow = 552, kHeight = 260, kWideHeight = 320;
constexpr size_t kMostMarks = 80;  // of one line
constexpr double kManyTimes = 30;  // the median, and an axis becomes logarithmic
constexpr double kRoom = 0.05;     // above and below the lines
constexpr double kMark = 5, kTick = 6;

class Picture {
 public:
  explicit Picture(const Chart& chart)
      : chart_(chart),
        width_(chart.is_wide ? kWide : kNarrow),
        height_(chart.is_wide ? kWideHeight : kHeight) {
    for (const ChartLine& line : chart.lines) {
      for (const Point& point : line.points) {
        if (!std::isfinite(point.y)) continue;
        ys_.push_back(point.y);
        if (ys_.size() == 1) x_ = {point.x, point.x};
        x_ = {std::min(x_.begin, point.x), std::max(x_.end, point.x)};
      }
    }
  }

  std::string Draw() {
    if (ys_.empty()) return "";
    const bool is_log = chart_.may_be_log && IsSkewed();
    const Axis x(x_, {kLeft, width_ - kRight}, false);
    const Axis y(RangeOfY(is_log), {height_ - kBottom, kTop}, is_log);
    svg_.Text(0, 14, chart_.title + (is_log ? " (logarithmic)" : ""), "class=\"chart-title\"");
    DrawAxes(x, y);
    for (const ChartTicks& ticks : chart_.ticks) DrawTicks(ticks, x);
    for (const ChartLine& line : chart_.lines) DrawLine(line, x, y);
    return svg_.Inline(width_, height_, Places(x, y));
  }

 private:
  // Whether a few values are so high that a linear axis would hide the others.
  bool IsSkewed() {
    const auto middle = ys_.begin() + static_cast<ptrdiff_t>(ys_.size() / 2);
    std::ranges::nth_element(ys_, middle);
    const double median = *middle;
    const auto [low, high] = std::ranges::minmax(ys_);
    return low > 0 && high > kManyTimes * median;
  }
  Range RangeOfY(bool is_log) const {
    const auto [low, high] = std::ranges::minmax(ys_);
    if (is_log) return {low / 1.2, high * 1.2};
    const double room = kRoom * (high - low);
    // Values that are never negative get no axis below 0.
    return {low >= 0 ? std::max(0.0, low - room) : low - room, high + room};
  }

  static std::string Attribute(const char* name, double value) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.12g", value);
    return std::string(" ") + name + "=\"" + text + "\"";
  }
  // For programs, and for the page's script.
  std::string Places(const Axis& x, const Axis& y) const {
    return "class=\"chart" + std::string(chart_.is_wide ? " wide" : "") + "\" role=\"img\"" +
           " aria-label=\"" + HtmlText(chart_.title) + "\"" + Attribute("data-left", kLeft) +
           Attribute("data-top", kTop) + Attribute("data-width", width_ - kRight - kLeft) +
           Attribute("data-height", height_ - kBottom - kTop) +
           Attribute("data-x-begin", x.values().begin) + Attribute("data-x-end", x.values().end) +
           Attribute("data-y-begin", y.values().begin) + Attribute("data-y-end", y.values().end) +
           (y.is_log() ? " data-log=\"1\"" : "");
  }

  void DrawAxes(const Axis& x, const Axis& y) {
    for (const double value : y.Ticks(5)) {
      const double at = y.ToPixels(value);
      svg_.Line(kLeft, at, width_ - kRight, at, "class=\"grid\"");
      svg_.Text(kLeft - 8, at + 4, ShortNumber(value), "class=\"tick\" text-anchor=\"end\"");
    }
    const double bottom = height_ - kBottom;
    svg_.Line(kLeft, bottom, width_ - kRight, bottom, "class=\"axis\"");
    for (const double value : x.Ticks(chart_.is_wide ? 10 : 6, /*whole=*/true)) {
      const double at = x.ToPixels(value);
      svg_.Line(at, bottom, at, bottom + 4, "class=\"axis\"");
      svg_.Text(at, bottom + 18, ShortNumber(value), "class=\"tick\" text-anchor=\"middle\"");
    }
    svg_.Text(kLeft - 8, bottom + 18, "step", "class=\"tick\" text-anchor=\"end\"");
  }

  // Many ticks may share a pixel: each pixel gets one.
  void DrawTicks(const ChartTicks& ticks, const Axis& x) {
    double last = -1;
    for (const double step : ticks.steps) {
      if (step < x.values().begin || step > x.values().end) continue;
      const double at = std::round(x.ToPixels(step));
      if (at == std::exchange(last, at)) continue;
      svg_.Rect({at - 1, height_ - kBottom - kTick, 2, 2 * kTick},
                "class=\"event " + RunClass(ticks.run) + "\"",
                ticks.label + ": step " + FormatThousands(static_cast<int64_t>(step)));
    }
  }

  void DrawLine(const ChartLine& line, const Axis& x, const Axis& y) {
    const auto columns = static_cast<int>(width_ - kRight - kLeft);
    const std::string label = " data-label=\"" + HtmlText(line.label) + "\"";
    const std::string name = RunClass(line.run) + (line.has_marks ? " marked" : "");
    for (const auto& part : Thin(line.points, x.values(), columns)) {
      std::vector<std::pair<double, double>> pixels;
      for (const Point& point : part) {
        pixels.emplace_back(x.ToPixels(point.x), y.ToPixels(point.y));
      }
      const bool marks = part.size() == 1 || (line.has_marks && line.points.size() <= kMostMarks);
      svg_.Polyline(pixels, "class=\"line " + name + "\"" + label);
      if (!marks) continue;
      for (const auto& [px, py] : pixels) {
        svg_.Rect({px - kMark / 2, py - kMark / 2, kMark, kMark}, "class=\"mark " + name + "\"");
      }
    }
  }

  const Chart& chart_;
  const double width_, height_;
  Range x_;
  std::vector<double> ys_;  // the finite values
  SvgWriter svg_;
};

}  // namespace

std::string ChartSvg(const Chart& chart) { return Picture(chart).Draw(); }

std::string ShortNumber(double value) {
  const double size = std::abs(value);
  const auto print = [](double scaled, const char* unit) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.4g%s", scaled, unit);
    return std::string(text);
  };
  if (size >= 1e15) return print(value, "");
  if (size >= 1e9) return print(value / 1e9, "G");
  if (size >= 1e6) return print(value / 1e6, "M");
  if (size >= 1e4) return print(value / 1e3, "k");
  return print(value, "");
}

std::string RunClass(size_t run) {
  constexpr size_t kNumColours = 8;
  return "run" + std::to_string(run % kNumColours) +
         (run < kNumColours ? "" : " again" + std::to_string(run / kNumColours % 3));
}

}  // namespace apogee::report
