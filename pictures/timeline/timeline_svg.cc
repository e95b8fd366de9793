// SPDX-License-Identifier: Apache-2.0

#include "apogee/pictures/timeline/timeline_svg.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "apogee/core/text/text.h"
#include "apogee/pictures/svg_writer.h"

namespace apogee {
namespace {

// In pixels.
constexpr double kMargin = 16, kTop = 84, kRow = 30, kBox = 24, kLabels = 190;
constexpr double kMinTime = 900, kMaxTime = 6000, kTypicalBox = 22, kDigit = 7;
constexpr const char* kIdle = "fill=\"url(#bubble)\"";

const char* ColourOf(PipelineKind kind) {
  switch (kind) {
    case PipelineKind::kForward:
      return "#2b6cb0";
    case PipelineKind::kBackward:
      return "#2f855a";
    case PipelineKind::kWeightBackward:
      return "#c05621";
  }
  return "";
}
const char* NameOf(PipelineKind kind) {
  switch (kind) {
    case PipelineKind::kForward:
      return "forward";
    case PipelineKind::kBackward:
      return "backward";
    case PipelineKind::kWeightBackward:
      return "backward of weights";
  }
  return "";
}

class Picture {
 public:
  Picture(const StepTimeline& step, const std::string& title) : step_(step), title_(title) {
    std::vector<int64_t> lengths;
    for (const PipelineEvent& event : step.events()) {
      lengths.push_back(event.end_ns - event.begin_ns);
    }
    std::ranges::nth_element(lengths, lengths.begin() + static_cast<ptrdiff_t>(lengths.size() / 2));
    const auto makespan = static_cast<double>(std::max<int64_t>(step.makespan_ns(), 1));
    const auto typical = static_cast<double>(std::max<int64_t>(lengths[lengths.size() / 2], 1));
    time_ = std::clamp(kTypicalBox * makespan / typical, kMinTime, kMaxTime);
    scale_ = time_ / makespan;
  }

  std::string Draw() {
    const double width = kMargin + kLabels + time_ + kMargin;
    const double bottom = kTop + kRow * static_cast<double>(step_.stages().size());
    svg_.Raw(
        "<title>" + SvgWriter::Escape(title_) +
        "</title>\n"
        "<defs><pattern id=\"bubble\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#edf2f7\"/>"
        "<line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" stroke=\"#a0aec0\" stroke-width=\"2\"/>"
        "</pattern></defs>\n");
    svg_.Rect({0, 0, width, bottom + 66}, "fill=\"white\"");
    svg_.Text(kMargin, 28, title_, "font-size=\"17\" font-weight=\"bold\"");
    svg_.Text(kMargin, 50,
              "step " + std::to_string(step_.step()) + ": " + FormatMs(step_.makespan_ns()) +
                  ", bubble " + FormatPercent(step_.bubble_share()));
    svg_.Text(kMargin, kTop - 10, "stage", "font-weight=\"bold\"");
    svg_.Text(kMargin + 60, kTop - 10, "idle", "font-weight=\"bold\"");
    std::map<int, double> rows;
    for (const StageTime& stage : step_.stages()) {
      const double y = kTop + kRow * static_cast<double>(rows.size());
      rows[stage.rank] = y;
      svg_.Text(kMargin, y + 16, "rank " + std::to_string(stage.rank));
      const auto idle = static_cast<double>(stage.idle_ns);
      svg_.Text(
          kMargin + 60, y + 16,
          FormatMs(stage.idle_ns) + " (" +
              FormatPercent(idle / static_cast<double>(std::max<int64_t>(step_.makespan_ns(), 1))) +
              ")");
      Bubbles(stage.rank, y);
    }
    for (const PipelineEvent& event : step_.events()) Box(event, rows.at(event.rank));
    Legend(bottom + 24);
    return svg_.Document(width, bottom + 66);
  }

 private:
  double X(int64_t ns) const {
    return kMargin + kLabels + scale_ * static_cast<double>(ns - step_.begin_ns());
  }

  void Bubbles(int rank, double y) {
    int64_t until = step_.begin_ns();
    const auto fill = [&](int64_t to) {
      if (to <= until) return;
      svg_.Rect({X(until), y, X(to) - X(until), kBox},
                std::string(kIdle) + " data-bubble=\"" + std::to_string(rank) + "\"",
                "rank " + std::to_string(rank) + " waits " + FormatMs(to - until));
    };
    for (const PipelineEvent& event : step_.events()) {
      if (event.rank != rank) continue;
      fill(event.begin_ns);
      until = std::max(until, event.end_ns);
    }
    fill(step_.begin_ns() + step_.makespan_ns());
  }

  void Box(const PipelineEvent& event, double y) {
    const double x = X(event.begin_ns), width = X(event.end_ns) - x;
    const std::string number = std::to_string(event.micro_batch);
    svg_.Rect({x, y, width, kBox},
              std::string("fill=\"") + ColourOf(event.kind) + "\"" +
                  (event.chunk % 2 == 1 ? " fill-opacity=\"0.65\"" : "") +
                  " stroke=\"white\" stroke-width=\"0.5\" data-kind=\"" +
                  static_cast<char>(event.kind) + "\" data-rank=\"" + std::to_string(event.rank) +
                  "\" data-micro-batch=\"" + number + "\" data-chunk=\"" +
                  std::to_string(event.chunk) + "\"",
              "rank " + std::to_string(event.rank) + ": " + NameOf(event.kind) +
                  " of micro-batch " + number + ", chunk " + std::to_string(event.chunk) + ", " +
                  FormatMs(event.end_ns - event.begin_ns));
    if (width < kDigit * static_cast<double>(number.size()) + 2) return;
    svg_.Text(x + width / 2, y + 16, number,
              "fill=\"white\" font-size=\"11\" text-anchor=\"middle\"");
  }

  void Legend(double y) {
    double x = kMargin;
    const auto entry = [&](const std::string& fill, const std::string& text) {
      svg_.Rect({x, y, 24, 12}, fill);
      svg_.Text(x + 30, y + 10, text);
      x += 60 + kDigit * static_cast<double>(text.size());
    };
    for (const PipelineKind kind :
         {PipelineKind::kForward, PipelineKind::kBackward, PipelineKind::kWeightBackward}) {
      entry(std::string("fill=\"") + ColourOf(kind) + "\"", NameOf(kind));
    }
    entry(kIdle, "bubble: the stage waits");
    svg_.Text(kMargin, y + 32, "Numbers are micro-batches; odd chunks are paler.");
  }

  const StepTimeline& step_;
  const std::string& title_;
  double time_ = 0, scale_ = 0;  // pixels, pixels per nanosecond
  SvgWriter svg_;
};

}  // namespace

std::string TimelineSvg(const StepTimeline& step, const std::string& title) {
  return Picture(step, title).Draw();
}

std::string FormatMs(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.3f ms", static_cast<double>(ns) / 1e6);
  return text;
}

}  // namespace apogee
