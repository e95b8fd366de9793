// SPDX-License-Identifier: Apache-2.0

// The rectangles that draw a parameter: which rank holds which elements, in blocks of rows and
// columns. Blocks too fine to see are joined.
//
//   const ShardGrid grid(layout, 150, 18);                    // pixels
//   const ShardHolders holders(parts);                        // one parameter, on all ranks
//   ShardBlockBuilder builder(grid, parts.size());
//   holders.ForEach(segment, [&](int64_t begin, int64_t end, int first_rank, int count) {
//     builder.Add(begin, end, first_rank, count);
//   });
//   std::vector<ShardBlock> blocks = builder.Finish();
#ifndef APOGEE_PICTURES_SHARD_BLOCKS_H_
#define APOGEE_PICTURES_SHARD_BLOCKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "apogee/layout/layout.h"
#include "apogee/pictures/held_parts.h"

namespace apogee {

// Rows [row, row_end) and columns [col, col_end) of a parameter; `elements` of them are held.
struct ShardBlock {
  int64_t row, row_end, col, col_end, elements;
  int64_t pieces = 1;
  int first_rank = 0;
  bool everywhere = false;
  int64_t area() const { return (row_end - row) * (col_end - col); }
};
// A parameter's rectangle of `width` by `height` pixels. Row r of the parameter begins at x(r),
// column c at y(c). A vector is drawn along the width.
struct ShardGrid {
  ShardGrid(const Layout& layout, double width_pixels, double height_pixels);
  double x(int64_t row) const {
    return width * static_cast<double>(row) / static_cast<double>(rows);
  }
  double y(int64_t col) const {
    return height * static_cast<double>(col) / static_cast<double>(cols);
  }
  double width, height;
  int64_t rows, cols, numel;
};

// One parameter's elements, cut wherever a rank's segment begins or ends.
class ShardHolders {
 public:
  explicit ShardHolders(const std::vector<const HeldPart*>& parts);
  // Calls fn(begin, end, first rank that holds the range, number of ranks that hold it).
  void ForEach(const Segment& segment,
               const std::function<void(int64_t, int64_t, int, int)>& fn) const;

 private:
  size_t Find(int64_t element) const;

  std::vector<int64_t> cuts_;
  std::vector<int> first_, count_;
};

// Collects blocks. Rows that continue a block become part of it.
class ShardBlockBuilder {
 public:
  // The grid must outlive it.
  ShardBlockBuilder(const ShardGrid& grid, size_t num_ranks)
      : grid_(grid), num_ranks_(static_cast<int>(num_ranks)) {}

  void Add(int64_t begin, int64_t end, int first_rank, int num_holders);
  // Returns the blocks; those too fine to draw are joined.
  std::vector<ShardBlock> Finish();

 private:
  using Side = int64_t ShardBlock::*;

  void AddBlock(const ShardBlock& block);
  void Merge(Side begin, Side end, Side side, Side side_end,
             const std::function<double(int64_t from, int64_t to)>& pixels);

  const ShardGrid& grid_;
  int num_ranks_;
  std::vector<ShardBlock> blocks_;
  // The latest block of each range of columns and each colour.
  std::map<std::tuple<int64_t, int64_t, int, bool>, size_t> last_;
};

}  // namespace apogee

#endif  // APOGEE_PICTURES_SHARD_BLOCKS_H_
