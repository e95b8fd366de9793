#include "apogee/plugins/plan_svg.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "apogee/core/text.h"

namespace apogee {
namespace {

// In pixels.
constexpr double kBarWidth = 150, kBarHeight = 18, kRowHeight = 26, kMargin = 16, kGap = 14;
constexpr double kCharWidth = 6.7;  // of the names' 11 px monospace
constexpr double kHeader = 92, kLegendLine = 20;
constexpr double kMinPadding = 3;  // padding is a warning: it must be seen

// What one rank holds of one parameter.
struct Part {
  int64_t padding = 0;
  std::vector<comm::Segment> segments;
};

// Rows [row, row_end) and columns [col, col_end) of a parameter; `elements` of them are held.
struct Block {
  int64_t row, row_end, col, col_end, elements;
  int64_t pieces = 1;
  int first_rank = 0;
  bool everywhere = false;
  int64_t area() const { return (row_end - row) * (col_end - col); }
};

// A parameter's rectangle. Vectors lie along it.
struct Grid {
  explicit Grid(const comm::Layout& layout) {
    const comm::MatrixView matrix = layout.matrix();
    const bool vector = layout.logical_shape().rank() < 2;
    rows = vector ? matrix.cols : matrix.batch * matrix.rows;
    cols = vector ? 1 : matrix.cols;
    numel = rows * cols;
  }
  double x(int64_t row) const {
    return kBarWidth * static_cast<double>(row) / static_cast<double>(rows);
  }
  double y(int64_t col) const {
    return kBarHeight * static_cast<double>(col) / static_cast<double>(cols);
  }
  int64_t rows, cols, numel;
};

std::string Escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      // XML has no place for control characters.
      default:
        escaped += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return escaped;
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

// Evenly spaced hues; neighbours in rank are apart in lightness, too. In hexadecimal, which every
// program that draws SVG knows.
std::string Colour(int rank, int num_ranks) {
  const double hue = std::fmod(210 + 360.0 * rank / num_ranks, 360) / 30;
  const double lightness = rank % 2 == 0 ? 0.42 : 0.62, saturation = 0.6;
  std::string colour = "#";
  for (const double offset : {0.0, 8.0, 4.0}) {
    const double k = std::fmod(offset + hue, 12);
    const double value = lightness - saturation * std::min(lightness, 1 - lightness) *
                                         std::clamp(std::min(k - 3, 9 - k), -1.0, 1.0);
    char text[8];
    std::snprintf(text, sizeof(text), "%02x",
                  static_cast<unsigned>(std::lround(255 * value)) & 255);
    colour += text;
  }
  return colour;
}

std::vector<int64_t> Describe(const optim::Optimizer& optimizer) {
  std::vector<int64_t> words;
  for (const optim::ParamView& view : optimizer.views()) {
    const comm::Layout& layout = view.layout();
    words.push_back(layout.logical_shape().numel());
    words.push_back(view.value().numel() - layout.local_numel());
    words.push_back(static_cast<int64_t>(layout.segments().size()));
    for (const comm::Segment& segment : layout.segments()) {
      words.push_back(segment.begin);
      words.push_back(segment.length);
    }
  }
  return words;
}

// parts[rank][parameter] of all ranks.
std::vector<std::vector<Part>> Exchange(const optim::Optimizer& optimizer,
                                        const comm::GroupPtr& group) {
  std::vector<int64_t> words = Describe(optimizer);
  const auto num_ranks = static_cast<int64_t>(comm::GroupSize(group));
  std::vector<int64_t> sizes = {static_cast<int64_t>(words.size())}, all = words;
  int64_t largest = sizes[0];
  if (group != nullptr) {
    const ContextPtr context = optimizer.views()[0].value().context();
    const auto gather = [&](const std::vector<int64_t>& mine) {
      const auto count = static_cast<int64_t>(mine.size());
      const Tensor output = Tensor::Empty({num_ranks * count}, DType::kI64, context);
      group->AllGather(output, Tensor::FromVector<int64_t>(mine, {count}, context));
      return output.ToVector<int64_t>();
    };
    sizes = gather(sizes);
    largest = *std::ranges::max_element(sizes);
    words.resize(static_cast<size_t>(largest), 0);
    all = gather(words);
  }
  std::vector<std::vector<Part>> parts;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    auto word = all.begin() + rank * largest;
    const auto end = word + sizes[static_cast<size_t>(rank)];
    std::vector<Part>& held = parts.emplace_back();
    for (const optim::ParamView& view : optimizer.views()) {
      APOGEE_CHECK(word != end && *word++ == view.layout().logical_shape().numel(),
                   "plan_svg: rank ", rank, " of the group holds other parameters than this rank, ",
                   "from \"", view.name(), "\" on");
      Part part{.padding = *word++, .segments = {}};
      for (int64_t left = *word++; left > 0; --left, word += 2) {
        part.segments.push_back({.begin = word[0], .length = word[1]});
      }
      held.push_back(std::move(part));
    }
    APOGEE_CHECK(word == end, "plan_svg: rank ", rank,
                 " of the group holds more parameters than this rank");
  }
  return parts;
}

// One parameter's elements, cut wherever some rank's segment begins or ends.
class Holders {
 public:
  explicit Holders(const std::vector<const Part*>& parts) {
    for (const Part* part : parts) {
      for (const comm::Segment& s : part->segments) {
        cuts_.push_back(s.begin);
        cuts_.push_back(s.begin + s.length);
      }
    }
    std::ranges::sort(cuts_);
    cuts_.erase(std::ranges::unique(cuts_).begin(), cuts_.end());
    first_.resize(cuts_.size(), -1);
    count_.resize(cuts_.size(), 0);
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      for (const comm::Segment& segment : parts[rank]->segments) {
        for (size_t i = Find(segment.begin); i < Find(segment.begin + segment.length); ++i) {
          if (count_[i]++ == 0) first_[i] = static_cast<int>(rank);
        }
      }
    }
  }
  // Calls fn(begin, end, first rank that holds it, number of ranks that do).
  template <typename Fn>
  void ForEach(const comm::Segment& segment, const Fn& fn) const {
    for (size_t i = Find(segment.begin); i < Find(segment.begin + segment.length); ++i) {
      fn(cuts_[i], cuts_[i + 1], first_[i], count_[i]);
    }
  }

 private:
  size_t Find(int64_t element) const {
    return static_cast<size_t>(std::ranges::lower_bound(cuts_, element) - cuts_.begin());
  }
  std::vector<int64_t> cuts_;
  std::vector<int> first_, count_;
};

// Collects blocks; rows that continue a block become part of it.
class BlockBuilder {
 public:
  BlockBuilder(const Grid& grid, size_t num_ranks)
      : grid_(grid), num_ranks_(static_cast<int>(num_ranks)) {}

  void Add(int64_t begin, int64_t end, int first_rank, int num_holders) {
    while (begin < end) {
      const int64_t row = begin / grid_.cols, col = begin % grid_.cols;
      const int64_t whole = col == 0 ? (end - begin) / grid_.cols : 0;
      const int64_t count =
          whole > 0 ? whole * grid_.cols : std::min(end - begin, grid_.cols - col);
      AddBlock({.row = row,
                .row_end = row + std::max<int64_t>(whole, 1),
                .col = col,
                .col_end = whole > 0 ? grid_.cols : col + count,
                .elements = count,
                .first_rank = first_rank,
                .everywhere = num_holders == num_ranks_});
      begin += count;
    }
  }

  // What is too fine to be drawn becomes one block.
  std::vector<Block> Finish() {
    const auto width = [this](int64_t from, int64_t to) { return grid_.x(to) - grid_.x(from); };
    const auto height = [this](int64_t from, int64_t to) { return grid_.y(to) - grid_.y(from); };
    Merge(&Block::row, &Block::row_end, &Block::col, &Block::col_end, width);
    Merge(&Block::col, &Block::col_end, &Block::row, &Block::row_end, height);
    return std::move(blocks_);
  }

 private:
  void AddBlock(const Block& block) {
    const auto key = std::tuple(block.col, block.col_end, block.first_rank, block.everywhere);
    const auto [at, is_new] = last_.try_emplace(key, blocks_.size());
    if (!is_new && blocks_[at->second].row_end == block.row) {
      blocks_[at->second].row_end = block.row_end;
      blocks_[at->second].elements += block.elements;
      return;
    }
    at->second = blocks_.size();
    blocks_.push_back(block);
  }

  // Joins neighbours along one side that are less than a pixel thick and apart.
  template <typename Pixels>
  void Merge(int64_t Block::*begin, int64_t Block::*end, int64_t Block::*side,
             int64_t Block::*side_end, const Pixels& pixels) {
    std::ranges::stable_sort(blocks_, {}, [&](const Block& b) {
      return std::tuple(b.first_rank, b.everywhere, b.*side, b.*side_end, b.*begin);
    });
    std::vector<Block> merged;
    for (const Block& b : blocks_) {
      Block* last = merged.empty() ? nullptr : &merged.back();
      const bool joins = last != nullptr && last->first_rank == b.first_rank &&
                         last->everywhere == b.everywhere && last->*side == b.*side &&
                         last->*side_end == b.*side_end &&
                         (pixels(b.*begin, b.*end) < 1 && pixels(last->*end, b.*begin) < 1 &&
                          (last->pieces > 1 || pixels(last->*begin, last->*end) < 1));
      if (!joins) {
        merged.push_back(b);
        continue;
      }
      last->*end = b.*end;
      last->elements += b.elements;
      last->pieces += b.pieces;
    }
    blocks_ = std::move(merged);
  }

  const Grid& grid_;
  int num_ranks_;
  std::vector<Block> blocks_;
  // The latest block of each range of columns and colour.
  std::map<std::tuple<int64_t, int64_t, int, bool>, size_t> last_;
};

class Picture {
 public:
  Picture(const optim::Optimizer& optimizer, std::vector<std::vector<Part>> parts,
          const PlanSvgOptions& options)
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
    return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
           "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" +
           Number(width_) + "\" height=\"" + Number(y_) + "\" viewBox=\"0 0 " + Number(width_) +
           " " + Number(y_) + "\" font-family=\"sans-serif\" font-size=\"12\">\n" + body_ +
           "</svg>\n";
  }

 private:
  double ColumnX(size_t rank) const {
    return static_cast<double>(rank) * (kBarWidth + padding_ + kGap);
  }
  double PaddingWidth(size_t parameter, const Part& part) const {
    if (part.padding == 0) return 0;
    const Grid grid(optimizer_.views()[parameter].layout());
    return std::max(kMinPadding, kBarWidth * static_cast<double>(part.padding) /
                                     static_cast<double>(std::max<int64_t>(grid.numel, 1)));
  }

  void Text(double x, double y, const std::string& text, const std::string& attributes = "") {
    body_ += "<text x=\"" + Number(x) + "\" y=\"" + Number(y) + "\"" +
             (attributes.empty() ? "" : " " + attributes) + ">" + Escape(text) + "</text>\n";
  }
  void Rect(double x, double y, double width, double height, const std::string& attributes,
            const std::string& tooltip = "") {
    body_ += "<rect x=\"" + Number(x) + "\" y=\"" + Number(y) + "\" width=\"" + Number(width) +
             "\" height=\"" + Number(height) + "\" " + attributes +
             (tooltip.empty() ? "/>\n" : "><title>" + Escape(tooltip) + "</title></rect>\n");
  }

  void Header() {
    const int num_ranks = static_cast<int>(parts_.size());
    const int tp = options_.tp_size, dp = num_ranks / tp;
    const std::string title = "Sharding plan of " + options_.model + ": tp " + std::to_string(tp) +
                              ", dp " + std::to_string(dp) + ", ZeRO stage " +
                              std::to_string(options_.zero_stage);
    body_ +=
        "<title>" + Escape(title) +
        "</title>\n"
        "<defs><pattern id=\"padding\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"5\" height=\"5\" fill=\"white\"/>"
        "<line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"5\" stroke=\"black\" stroke-width=\"2\"/>"
        "</pattern></defs>\n";
    Rect(0, 0, width_, Height(), "fill=\"white\"");
    Text(kMargin, 28, title, "font-size=\"17\" font-weight=\"bold\"");
    Text(kMargin, 47, "Filled: what the rank's optimizer holds of the parameter, and updates.");
    Text(kMargin, kHeader - 12, "parameter", "font-weight=\"bold\"");
    Text(shape_x_, kHeader - 12, "shape", "font-weight=\"bold\"");
    for (int rank = 0; rank < num_ranks; ++rank) {
      Text(ranks_x_ + ColumnX(static_cast<size_t>(rank)), kHeader - 12,
           "rank " + std::to_string(rank) + " (dp " + std::to_string(rank / tp) + ", tp " +
               std::to_string(rank % tp) + ")",
           "font-weight=\"bold\"");
    }
    y_ = kHeader;
  }

  void Row(size_t p) {
    const optim::ParamView& view = optimizer_.views()[p];
    const std::string monospace = "font-family=\"monospace\" font-size=\"11\"";
    Text(kMargin, y_ + 13, view.name(), monospace);
    Text(shape_x_, y_ + 13, view.layout().logical_shape().ToString(), monospace);
    std::vector<const Part*> parts;
    for (const auto& rank : parts_) parts.push_back(&rank[p]);
    const Holders holders(parts);
    const Grid grid(view.layout());
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      BlockBuilder builder(grid, parts.size());
      for (const comm::Segment& segment : parts[rank]->segments) {
        holders.ForEach(segment, [&](int64_t begin, int64_t end, int first, int count) {
          builder.Add(begin, end, first, count);
        });
      }
      Cell(view.name(), rank, grid, builder.Finish(), PaddingWidth(p, *parts[rank]),
           parts[rank]->padding);
    }
    y_ += kRowHeight;
  }

  void Cell(const std::string& name, size_t rank, const Grid& grid,
            const std::vector<Block>& blocks, double padding_width, int64_t padding) {
    const double x = ranks_x_ + ColumnX(rank);
    const std::string owner =
        " data-parameter=\"" + Escape(name) + "\" data-rank=\"" + std::to_string(rank) + "\"";
    const std::string who = name + " on rank " + std::to_string(rank) + ": ";
    Rect(x, y_, kBarWidth, kBarHeight, "fill=\"#f4f4f4\" stroke=\"#999\" stroke-width=\"0.5\"");
    for (const Block& b : blocks) {
      const bool fine = b.elements < b.area();
      std::string attributes =
          "fill=\"" +
          (b.everywhere ? std::string(kEverywhere)
                        : Colour(b.first_rank, static_cast<int>(parts_.size()))) +
          "\"" + owner + " data-elements=\"" + std::to_string(b.elements) + "\"";
      if (fine) {
        attributes += " fill-opacity=\"" +
                      Number(static_cast<double>(b.elements) / static_cast<double>(b.area())) +
                      "\"";
      }
      std::string tooltip = who + "rows " + Range(b.row, b.row_end);
      if (grid.cols > 1) tooltip += ", columns " + Range(b.col, b.col_end);
      tooltip += ", " + FormatThousands(b.elements) + " elements";
      if (fine) tooltip += " in " + FormatThousands(b.pieces) + " blocks";
      Rect(x + grid.x(b.row), y_ + grid.y(b.col), grid.x(b.row_end) - grid.x(b.row),
           grid.y(b.col_end) - grid.y(b.col), attributes, tooltip);
    }
    if (padding > 0) {
      Rect(x + kBarWidth, y_, padding_width, kBarHeight,
           "fill=\"url(#padding)\" stroke=\"black\" stroke-width=\"0.5\"" + owner +
               " data-padding=\"" + std::to_string(padding) + "\"",
           who + FormatThousands(padding) + " elements of padding");
    }
  }

  static std::string Range(int64_t begin, int64_t end) {
    return "[" + FormatThousands(begin) + ", " + FormatThousands(end) + ")";
  }

  void Totals() {
    Text(kMargin, y_ + 13, "elements held", "font-weight=\"bold\"");
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      int64_t held = 0, padding = 0;
      for (const Part& part : parts_[rank]) {
        padding += part.padding;
        for (const comm::Segment& segment : part.segments) held += segment.length;
      }
      Text(ranks_x_ + ColumnX(rank), y_ + 13,
           FormatThousands(held) +
               (padding > 0 ? " + " + FormatThousands(padding) + " padding" : ""));
    }
    y_ += kRowHeight;
  }

  void Legend() {
    y_ += kGap;
    Text(kMargin, y_ + 10,
         "A parameter's rows run from left to right, its columns from top to bottom; vectors run "
         "from left to right.");
    y_ += kLegendLine;
    const auto line = [this](const std::string& fill, const std::string& text) {
      Rect(kMargin, y_, 24, 12, "fill=\"" + fill + "\" stroke=\"#999\" stroke-width=\"0.5\"");
      Text(kMargin + 34, y_ + 10, text);
      y_ += kLegendLine;
    };
    line(kEverywhere, "every rank holds these elements");
    if (parts_.size() > 1) {
      const double step = 24;
      for (size_t rank = 0; rank < parts_.size(); ++rank) {
        Rect(kMargin + step * static_cast<double>(rank), y_, step, 12,
             "fill=\"" + Colour(static_cast<int>(rank), static_cast<int>(parts_.size())) + "\"");
      }
      Text(kMargin + step * static_cast<double>(parts_.size()) + 10, y_ + 10,
           "the first of the ranks (from 0) that hold these elements: equal colours in a row are "
           "equal elements");
      y_ += kLegendLine;
    }
    line("url(#padding)",
         "padding of the local tensor, no element of the parameter; at least 3 px wide");
    Rect(kMargin, y_, 24, 12, "fill=\"" + Colour(0, 1) + "\" fill-opacity=\"0.4\"");
    Text(kMargin + 34, y_ + 10,
         "blocks too fine to be drawn apart, as strong as the share of elements that is held");
    y_ += kLegendLine + kGap;
  }

  double Height() const {
    const double legend = parts_.size() > 1 ? 5 : 4;
    return kHeader + kRowHeight * static_cast<double>(optimizer_.views().size() + 1) + 2 * kGap +
           kLegendLine * legend;
  }

  static constexpr const char* kEverywhere = "#8a8a8a";
  const optim::Optimizer& optimizer_;
  std::vector<std::vector<Part>> parts_;
  const PlanSvgOptions& options_;
  double padding_ = 0;  // room for it behind every rectangle
  double shape_x_ = 0, ranks_x_ = 0, width_ = 0, y_ = 0;
  std::string body_;
};

}  // namespace

std::string PlanSvg(const optim::Optimizer& optimizer, const comm::GroupPtr& group,
                    const PlanSvgOptions& options) {
  const int num_ranks = comm::GroupSize(group);
  APOGEE_CHECK(options.tp_size >= 1 && num_ranks % options.tp_size == 0, "plan_svg: tp_size ",
               options.tp_size, " does not divide ", num_ranks, " ranks");
  APOGEE_CHECK(!optimizer.views().empty(), "plan_svg: the optimizer has no parameters");
  return Picture(optimizer, Exchange(optimizer, group), options).Draw();
}

}  // namespace apogee
