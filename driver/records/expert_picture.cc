// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/records/expert_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/pictures/svg_writer.h"

namespace apogee::driver {
namespace {

// In pixels.
constexpr double kMargin = 16, kLeft = 90, kWidth = 640, kTop = 62, kBandGap = 26;
constexpr double kRow = 12, kLegendStep = 52;
constexpr size_t kMostColumns = 160, kLeastColumns = 8, kMostCells = 20000;
constexpr double kDarkest = 2;  // the share from which on a cell is as dark as can be

// White for no tokens, then through a light blue for an even load to dark blue.
std::string Shade(double share) {
  const double t = std::clamp(share / kDarkest, 0.0, 1.0);
  const auto part = [&](double dark) { return std::lround(255 + t * (dark - 255)); };
  char text[8];
  std::snprintf(text, sizeof(text), "#%02lx%02lx%02lx", part(8), part(48), part(107));
  return text;
}

std::string Fill(double share) { return "fill=\"" + Shade(share) + "\""; }

std::string ShareText(double share) {
  char text[16];
  std::snprintf(text, sizeof(text), "%.2f", share);
  return text;
}

void DrawLegend(SvgWriter& svg) {
  svg.Text(kMargin, 24, "Loads of experts", "font-size=\"15\" font-weight=\"bold\"");
  double x = kLeft;
  for (const double share : {0.0, 0.5, 1.0, 1.5, kDarkest}) {
    svg.Rect({x, 36, 12, 12}, Fill(share) + " stroke=\"#999\"");
    svg.Text(x + 16, 46, ShareText(share), "font-size=\"11\"");
    x += kLegendStep;
  }
  svg.Text(x + 8, 46, "of an even load", "font-size=\"11\"");
}

}  // namespace

ExpertPicture::ExpertPicture(std::vector<size_t> experts) : experts_(std::move(experts)) {
  const size_t rows = std::accumulate(experts_.begin(), experts_.end(), size_t{0});
  // Even, for MergePairs.
  most_columns_ = std::clamp(kMostCells / std::max<size_t>(rows, 1), kLeastColumns, kMostColumns);
  most_columns_ += most_columns_ % 2;
}

void ExpertPicture::Add(const std::vector<double>& loads) {
  if (columns_.empty() || columns_.back().steps == steps_per_column_) {
    if (columns_.size() == most_columns_) MergePairs();
    columns_.push_back({.loads = std::vector<double>(loads.size())});
  }
  for (size_t e = 0; e < loads.size(); ++e) columns_.back().loads[e] += loads[e];
  ++columns_.back().steps;
}

void ExpertPicture::MergePairs() {
  for (size_t c = 0; c < columns_.size() / 2; ++c) {
    const Column& second = columns_[2 * c + 1];
    Column merged = columns_[2 * c];
    for (size_t e = 0; e < merged.loads.size(); ++e) merged.loads[e] += second.loads[e];
    merged.steps += second.steps;
    columns_[c] = std::move(merged);
  }
  columns_.resize(columns_.size() / 2);
  steps_per_column_ *= 2;
}

std::string ExpertPicture::Draw(int64_t last_step) const {
  if (columns_.empty()) return "";
  SvgWriter svg;
  const double cell = kWidth / static_cast<double>(columns_.size());
  int64_t first_step = last_step + 1;
  for (const Column& column : columns_) first_step -= column.steps;
  DrawLegend(svg);
  double y = kTop;
  size_t row = 0;  // over all layers
  for (size_t layer = 0; layer < experts_.size(); ++layer) {
    svg.Text(kMargin, y + 12, "layer " + std::to_string(layer), "font-size=\"12\"");
    const double top = y + 2;
    for (size_t e = 0; e < experts_[layer]; ++e, ++row, y += kRow) {
      int64_t step = first_step - 1;
      for (size_t c = 0; c < columns_.size(); ++c) {
        const double share = columns_[c].loads[row] / static_cast<double>(columns_[c].steps);
        step += columns_[c].steps;
        // Cells overlap a little, so that no background shows between them.
        svg.Rect({kLeft + cell * static_cast<double>(c), y + 2, cell + 0.3, kRow + 0.3},
                 Fill(share),
                 "expert " + std::to_string(e) + ", step " + FormatThousands(step) + ": " +
                     ShareText(share));
      }
    }
    svg.Rect({kLeft, top, kWidth, y + 2 - top}, "fill=\"none\" stroke=\"#999\"");
    y += kBandGap;
  }
  svg.Text(kLeft, y, "step " + FormatThousands(first_step), "font-size=\"11\"");
  svg.Text(kLeft + kWidth, y, FormatThousands(last_step), "font-size=\"11\" text-anchor=\"end\"");
  return svg.Document(kLeft + kWidth + kMargin, y + kMargin);
}

}  // namespace apogee::driver
