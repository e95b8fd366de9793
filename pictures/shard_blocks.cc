// SPDX-License-Identifier: Apache-2.0

#include "apogee/pictures/shard_blocks.h"

#include <algorithm>
#include <utility>

namespace apogee {

ShardGrid::ShardGrid(const Layout& layout, double width_pixels, double height_pixels)
    : width(width_pixels), height(height_pixels) {
  const MatrixView matrix = layout.matrix();
  const bool vector = layout.logical_shape().rank() < 2;
  rows = vector ? matrix.cols : matrix.batch * matrix.rows;
  cols = vector ? 1 : matrix.cols;
  numel = rows * cols;
}

ShardHolders::ShardHolders(const std::vector<const HeldPart*>& parts) {
  for (const HeldPart* part : parts) {
    for (const Segment& s : part->segments) {
      cuts_.push_back(s.begin);
      cuts_.push_back(s.begin + s.length);
    }
  }
  std::ranges::sort(cuts_);
  cuts_.erase(std::ranges::unique(cuts_).begin(), cuts_.end());
  first_.resize(cuts_.size(), -1);
  count_.resize(cuts_.size(), 0);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (const Segment& segment : parts[rank]->segments) {
      for (size_t i = Find(segment.begin); i < Find(segment.begin + segment.length); ++i) {
        if (count_[i]++ == 0) first_[i] = static_cast<int>(rank);
      }
    }
  }
}

void ShardHolders::ForEach(const Segment& segment,
                           const std::function<void(int64_t, int64_t, int, int)>& fn) const {
  for (size_t i = Find(segment.begin); i < Find(segment.begin + segment.length); ++i) {
    fn(cuts_[i], cuts_[i + 1], first_[i], count_[i]);
  }
}

size_t ShardHolders::Find(int64_t element) const {
  return static_cast<size_t>(std::ranges::lower_bound(cuts_, element) - cuts_.begin());
}

void ShardBlockBuilder::Add(int64_t begin, int64_t end, int first_rank, int num_holders) {
  while (begin < end) {
    const int64_t row = begin / grid_.cols, col = begin % grid_.cols;
    const int64_t whole = col == 0 ? (end - begin) / grid_.cols : 0;
    const int64_t count = whole > 0 ? whole * grid_.cols : std::min(end - begin, grid_.cols - col);
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

std::vector<ShardBlock> ShardBlockBuilder::Finish() {
  const auto width = [this](int64_t from, int64_t to) { return grid_.x(to) - grid_.x(from); };
  const auto height = [this](int64_t from, int64_t to) { return grid_.y(to) - grid_.y(from); };
  Merge(&ShardBlock::row, &ShardBlock::row_end, &ShardBlock::col, &ShardBlock::col_end, width);
  Merge(&ShardBlock::col, &ShardBlock::col_end, &ShardBlock::row, &ShardBlock::row_end, height);
  return std::move(blocks_);
}

void ShardBlockBuilder::AddBlock(const ShardBlock& block) {
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

// Joins neighbours along one side that are less than a pixel thick and less than a pixel apart.
void ShardBlockBuilder::Merge(Side begin, Side end, Side side, Side side_end,
                              const std::function<double(int64_t, int64_t)>& pixels) {
  std::ranges::stable_sort(blocks_, {}, [&](const ShardBlock& b) {
    return std::tuple(b.first_rank, b.everywhere, b.*side, b.*side_end, b.*begin);
  });
  std::vector<ShardBlock> merged;
  for (const ShardBlock& b : blocks_) {
    ShardBlock* last = merged.empty() ? nullptr : &merged.back();
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

}  // namespace apogee
