// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>
#include <vector>

#include "apogee/core/text/text.h"
#include "apogee/pictures/held_parts.h"
#include "apogee/pictures/maps.h"
#include "apogee/pictures/shard_blocks.h"
#include "apogee/pictures/svg_writer.h"

namespace apogee {
namespace {

// In pixels.
constexpr double kBarWidth = 150, kBarHeight = 18, kRowHeight = 26, kMargin = 16, kGap = 14;
constexpr double kCharWidth = 6.7;  // names are in 11 px monospace
constexpr double kHeader = 92, kLegendLine = 20;
constexpr double kMinPadding = 3;  // padding is a warning: it must be seen

class Picture {
 public:
  Picture(const optim::Optimizer& optimizer, std::vector<std::vector<HeldPart>> parts,
          const ShardMapOptions& options)
      : optimizer_(optimizer), parts_(std::move(parts)), options_(options) {
    size_t name = 9, shape = 5;
    for (size_t p = 0; p < optimizer_.views().size(); ++p) {
      const optim::ParamView& view = optimizer_.views()[p];
      name = std::max(name, view.name().size());
      shape = std::max(shape, view.layout().logical_shape().ToString().size());
      for (const auto& rank : parts_) padding_ = std::max(padding_, PaddingWidth(p, rank[p]));
    }
    shape_x_ = kMargin + kCharWidth * static_cast<double>(name + 2);
    ranks_x_ = shape_x_ + kCharWidth * static_cast<double>(shape + 2);
    width_ = std::max(ranks_x_ + ColumnX(parts_.size()) + kMargin, 760.0);
  }

  std::string Draw() {
    Header();
    for (size_t p = 0; p < optimizer_.views().size(); ++p) Row(p);
    Totals();
    Legend();
    return svg_.Document(width_, y_);
  }

 private:
  double ColumnX(size_t rank) const {
    return static_cast<double>(rank) * (kBarWidth + padding_ + kGap);
  }
  double PaddingWidth(size_t parameter, const HeldPart& part) const {
    if (part.padding == 0) return 0;
    const ShardGrid grid(optimizer_.views()[parameter].layout(), kBarWidth, kBarHeight);
    return std::max(kMinPadding, kBarWidth * static_cast<double>(part.padding) /
                                     static_cast<double>(std::max<int64_t>(grid.numel, 1)));
  }

  void Header() {
    const int num_ranks = static_cast<int>(parts_.size());
    const int tp = options_.tp_size, dp = num_ranks / tp;
    const std::string title = "Sharding plan of " + options_.model + ": tp " + std::to_string(tp) +
                              ", dp " + std::to_string(dp) + ", ZeRO stage " +
                              std::to_string(options_.zero_stage);
    svg_.Raw(
        "<title>" + SvgWriter::Escape(title) +
        "</title>\n"
        "<defs><pattern id=\"padding\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"5\" height=\"5\" fill=\"white\"/>"
        "<line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"5\" stroke=\"black\" stroke-width=\"2\"/>"
        "</pattern></defs>\n");
    svg_.Rect({0, 0, width_, Height()}, "fill=\"white\"");
    svg_.Text(kMargin, 28, title, "font-size=\"17\" font-weight=\"bold\"");
    svg_.Text(kMargin, 47, "Filled: the elements that the rank's optimizer holds and updates.");
    svg_.Text(kMargin, kHeader - 12, "parameter", "font-weight=\"bold\"");
    svg_.Text(shape_x_, kHeader - 12, "shape", "font-weight=\"bold\"");
    for (int rank = 0; rank < num_ranks; ++rank) {
      svg_.Text(ranks_x_ + ColumnX(static_cast<size_t>(rank)), kHeader - 12,
                "rank " + std::to_string(rank) + " (dp " + std::to_string(rank / tp) + ", tp " +
                    std::to_string(rank % tp) + ")",
                "font-weight=\"bold\"");
    }
    y_ = kHeader;
  }

  void Row(size_t p) {
    const optim::ParamView& view = optimizer_.views()[p];
    const std::string monospace = "font-family=\"monospace\" font-size=\"11\"";
    svg_.Text(kMargin, y_ + 13, view.name(), monospace);
    svg_.Text(shape_x_, y_ + 13, view.layout().logical_shape().ToString(), monospace);
    std::vector<const HeldPart*> parts;
    for (const auto& rank : parts_) parts.push_back(&rank[p]);
    const ShardHolders holders(parts);
    const ShardGrid grid(view.layout(), kBarWidth, kBarHeight);
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      ShardBlockBuilder builder(grid, parts.size());
      for (const Segment& segment : parts[rank]->segments) {
        holders.ForEach(segment, [&](int64_t begin, int64_t end, int first, int count) {
          builder.Add(begin, end, first, count);
        });
      }
      Cell(view.name(), rank, grid, builder.Finish(), PaddingWidth(p, *parts[rank]),
           parts[rank]->padding);
    }
    y_ += kRowHeight;
  }

  void Cell(const std::string& name, size_t rank, const ShardGrid& grid,
            const std::vector<ShardBlock>& blocks, double padding_width, int64_t padding) {
    const double x = ranks_x_ + ColumnX(rank);
    const std::string owner = " data-parameter=\"" + SvgWriter::Escape(name) + "\" data-rank=\"" +
                              std::to_string(rank) + "\"";
    const std::string who = name + " on rank " + std::to_string(rank) + ": ";
    svg_.Rect({x, y_, kBarWidth, kBarHeight},
              "fill=\"#f4f4f4\" stroke=\"#999\" stroke-width=\"0.5\"");
    for (const ShardBlock& b : blocks) {
      const bool fine = b.elements < b.area();
      std::string attributes =
          "fill=\"" +
          (b.everywhere ? std::string(kEverywhere)
                        : SvgWriter::Colour(b.first_rank, static_cast<int>(parts_.size()))) +
          "\"" + owner + " data-elements=\"" + std::to_string(b.elements) + "\"";
      if (fine) {
        attributes +=
            " fill-opacity=\"" +
            SvgWriter::Number(static_cast<double>(b.elements) / static_cast<double>(b.area())) +
            "\"";
      }
      std::string tooltip = who + "rows " + Range(b.row, b.row_end);
      if (grid.cols > 1) tooltip += ", columns " + Range(b.col, b.col_end);
      tooltip += ", " + FormatThousands(b.elements) + " elements";
      if (fine) tooltip += " in " + FormatThousands(b.pieces) + " blocks";
      svg_.Rect({x + grid.x(b.row), y_ + grid.y(b.col), grid.x(b.row_end) - grid.x(b.row),
                 grid.y(b.col_end) - grid.y(b.col)},
                attributes, tooltip);
    }
    if (padding > 0) {
      svg_.Rect({x + kBarWidth, y_, padding_width, kBarHeight},
                "fill=\"url(#padding)\" stroke=\"black\" stroke-width=\"0.5\"" + owner +
                    " data-padding=\"" + std::to_string(padding) + "\"",
                who + FormatThousands(padding) + " elements of padding");
    }
  }

  static std::string Range(int64_t begin, int64_t end) {
    return "[" + FormatThousands(begin) + ", " + FormatThousands(end) + ")";
  }

  void Totals() {
    svg_.Text(kMargin, y_ + 13, "elements held", "font-weight=\"bold\"");
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      int64_t held = 0, padding = 0;
      for (const HeldPart& part : parts_[rank]) {
        padding += part.padding;
        for (const Segment& segment : part.segments) held += segment.length;
      }
      svg_.Text(ranks_x_ + ColumnX(rank), y_ + 13,
                FormatThousands(held) +
                    (padding > 0 ? " + " + FormatThousands(padding) + " padding" : ""));
    }
    y_ += kRowHeight;
  }

  void Legend() {
    y_ += kGap;
    svg_.Text(
        kMargin, y_ + 10,
        "A parameter's rows run from left to right, its columns from top to bottom; vectors run "
        "from left to right.");
    y_ += kLegendLine;
    const auto line = [this](const std::string& fill, const std::string& text) {
      svg_.Rect({kMargin, y_, 24, 12},
                "fill=\"" + fill + "\" stroke=\"#999\" stroke-width=\"0.5\"");
      svg_.Text(kMargin + 34, y_ + 10, text);
      y_ += kLegendLine;
    };
    line(kEverywhere, "every rank holds these elements");
    if (parts_.size() > 1) {
      const double step = 24;
      for (size_t rank = 0; rank < parts_.size(); ++rank) {
        svg_.Rect({kMargin + step * static_cast<double>(rank), y_, step, 12},
                  "fill=\"" +
                      SvgWriter::Colour(static_cast<int>(rank), static_cast<int>(parts_.size())) +
                      "\"");
      }
      svg_.Text(
          kMargin + step * static_cast<double>(parts_.size()) + 10, y_ + 10,
          "the first of the ranks (from 0) that hold these elements: equal colours in a row are "
          "equal elements");
      y_ += kLegendLine;
    }
    line("url(#padding)",
         "padding of the local tensor, no element of the parameter; at least 3 px wide");
    svg_.Rect({kMargin, y_, 24, 12},
              "fill=\"" + SvgWriter::Colour(0, 1) + "\" fill-opacity=\"0.4\"");
    svg_.Text(kMargin + 34, y_ + 10,
              "blocks too fine to draw separately; opacity: the share of elements held");
    y_ += kLegendLine + kGap;
  }

  double Height() const {
    const double legend = parts_.size() > 1 ? 5 : 4;
    return kHeader + kRowHeight * static_cast<double>(optimizer_.views().size() + 1) + 2 * kGap +
           kLegendLine * legend;
  }

  static constexpr const char* kEverywhere = "#8a8a8a";
  const optim::Optimizer& optimizer_;
  std::vector<std::vector<HeldPart>> parts_;
  const ShardMapOptions& options_;
  double padding_ = 0;  // room for padding behind every rectangle
  double shape_x_ = 0, ranks_x_ = 0, width_ = 0, y_ = 0;
  SvgWriter svg_;
};

}  // namespace

std::string ShardMapSvg(const optim::Optimizer& optimizer, const comm::GroupPtr& group,
                        const ShardMapOptions& options) {
  const int num_ranks = comm::GroupSize(group);
  APOGEE_CHECK(options.tp_size >= 1 && num_ranks % options.tp_size == 0, "shard_map: tp_size ",
               options.tp_size, " does not divide ", num_ranks, " ranks");
  APOGEE_CHECK(!optimizer.views().empty(), "shard_map: the optimizer has no parameters");
  return Picture(optimizer, ExchangeHeldParts(optimizer, group), options).Draw();
}

}  // namespace apogee
