// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/records/expert_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "apogee/core/text/text.h"
#include "apogee/pictures/svg_writer.h"

namespace apogee::driver {
namespace {

// In pixels.
constexpr double kMargin = 16, kLeft = 90, kWidth = 640, kTop = 62, kBandGap = 26;
constexpr double kRow = 12, kLegendStep = 44;
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

// The mean share of an expert over the steps of a column.
double MeanShare(const std::vector<std::vector<float>>& shares, size_t expert, size_t begin,
                 size_t end) {
  double sum = 0;
  for (size_t s = begin; s < end; ++s) sum += static_cast<double>(shares[s][expert]);
  return sum / static_cast<double>(end - begin);
}

void DrawLegend(SvgWriter& svg) {
  svg.Text(kMargin, 24, "Loads of experts", "font-size=\"15\" font-weight=\"bold\"");
  double x = kLeft;
  for (const double share : {0.0, 0.5, 1.0, 1.5, kDarkest}) {
    svg.Rect({x, 36, 12, 12}, Fill(share) + " stroke=\"#999\"");
    svg.Text(x + 16, 46, ShareText(share), "font-size=\"11\"");
    x += kLegendStep + 8;
  }
  svg.Text(x + 8, 46, "of an even load", "font-size=\"11\"");
}

}  // namespace

std::string ExpertPicture(const std::vector<std::vector<float>>& shares,
                          const std::vector<int64_t>& experts, int64_t first_step) {
  SvgWriter svg;
  const size_t steps = shares.size(), rows = std::max<size_t>(shares.at(0).size(), 1);
  const size_t columns =
      std::min(steps, std::clamp(kMostCells / rows, kLeastColumns, kMostColumns));
  const double cell = kWidth / static_cast<double>(columns);
  DrawLegend(svg);
  double y = kTop;
  size_t expert = 0;  // over all layers
  for (size_t layer = 0; layer < experts.size(); ++layer) {
    svg.Text(kMargin, y + 12, "layer " + std::to_string(layer), "font-size=\"12\"");
    const double top = y + 2;
    for (int64_t e = 0; e < experts[layer]; ++e, ++expert, y += kRow) {
      for (size_t c = 0; c < columns; ++c) {
        const size_t begin = c * steps / columns, end = (c + 1) * steps / columns;
        const double share = MeanShare(shares, expert, begin, end);
        // Cells overlap a little, so that no background shows between them.
        svg.Rect({kLeft + cell * static_cast<double>(c), y + 2, cell + 0.3, kRow + 0.3},
                 Fill(share),
                 "expert " + std::to_string(e) + ", step " +
                     FormatThousands(first_step + static_cast<int64_t>(end) - 1) + ": " +
                     ShareText(share));
      }
    }
    svg.Rect({kLeft, top, kWidth, y + 2 - top}, "fill=\"none\" stroke=\"#999\"");
    y += kBandGap;
  }
  svg.Text(kLeft, y, "step " + FormatThousands(first_step), "font-size=\"11\"");
  svg.Text(kLeft + kWidth, y, FormatThousands(first_step + static_cast<int64_t>(steps) - 1),
           "font-size=\"11\" text-anchor=\"end\"");
  return svg.Document(kLeft + kWidth + kMargin, y + kMargin);
}

}  // namespace apogee::driver
