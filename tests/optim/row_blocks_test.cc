// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/core/row_blocks.h"

#include <gtest/gtest.h>

namespace apogee::optim {
namespace row_blocks_test {

// Every local element in one block, at the row and column that its place in the logical tensor
// says.
void Check(const Layout& layout) {
  const MatrixView m = layout.matrix();
  std::vector<int64_t> logical;
  for (const Segment& s : layout.segments()) {
    for (int64_t i = 0; i < s.length; ++i) logical.push_back(s.begin + i);
  }
  std::vector<int> hits(logical.size());
  for (const RowBlock& b : RowBlocks(layout)) {
    EXPECT_LE(b.cols, kMaxBlockCols);
    for (int64_t i = 0; i < b.rows; ++i) {
      for (int64_t j = 0; j < b.cols; ++j) {
        const auto local = static_cast<size_t>(b.local + i * m.cols + j);
        ASSERT_LT(local, logical.size());
        ++hits[local];
        const int64_t row = logical[local] / m.cols;
        EXPECT_EQ(b.row + i, row);
        EXPECT_EQ(b.column + j, row / m.rows * m.cols + logical[local] % m.cols);
      }
    }
  }
  for (const int hit : hits) EXPECT_EQ(hit, 1);
}

TEST(RowBlocksTest, EveryElementOnce) {
  for (const Shape& shape :
       {Shape{}, Shape{1}, Shape{5000}, Shape{1, 9}, Shape{9, 1}, Shape{33, 17}, Shape{4, 6, 5},
        Shape{3, 2, 3, 3}, Shape{40, 4100}, Shape{700, 200}, Shape{0, 3}}) {
    Check(Layout(shape));
  }
}

TEST(RowBlocksTest, Shards) {
  Check(Layout({5, 7}, {.segments = {{0, 17}}}));
  Check(Layout({5, 7}, {.segments = {{17, 18}}}));
  Check(Layout({5, 7}, {.segments = {{3, 2}}}));
  Check(Layout({4, 6, 5}, {.segments = {{13, 80}}}));
  Check(Layout({4, 6, 5}, {.segments = {{60, 20}, {2, 9}}}));  // in any order
  Check(Layout({3, 9000}, {.segments = {{4500, 18000}}}));
  Check(Layout({5, 7}, {.segments = {}}));
}

}  // namespace row_blocks_test
}  // namespace apogee::optim
