// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/core/row_blocks.h"

#include <algorithm>

namespace apogee::optim {
namespace {

// Large enough for the columns' partial sums to be small compared with the block.
constexpr int64_t kBlockElements = 1 << 16;

}  // namespace

std::vector<RowBlock> RowBlocks(const Layout& layout) {
  const MatrixView matrix = layout.matrix();
  std::vector<RowBlock> blocks;
  // Cuts `rows` rows of one matrix from `row` on, columns [col, col + cols).
  const auto cut = [&](int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t local) {
    const int64_t panel = std::min(cols, kMaxBlockCols);
    const int64_t height = std::max<int64_t>(1, kBlockElements / panel);
    const int64_t first_column = row / matrix.rows * matrix.cols + col;
    for (int64_t r = 0; r < rows; r += height) {
      for (int64_t c = 0; c < cols; c += panel) {
        blocks.push_back({row + r, first_column + c, std::min(height, rows - r),
                          std::min(panel, cols - c), local + r * matrix.cols + c});
      }
    }
  };
  int64_t local = 0;
  for (const Segment& segment : layout.segments()) {
    int64_t position = segment.begin;
    const int64_t end = segment.begin + segment.length;
    while (position < end) {
      const int64_t row = position / matrix.cols;
      const int64_t col = position % matrix.cols;
      int64_t rows = 1;
      int64_t cols = std::min(matrix.cols - col, end - position);
      if (col == 0 && cols == matrix.cols) {  // whole rows, as far as this matrix goes
        rows = std::min((end - position) / matrix.cols, matrix.rows - row % matrix.rows);
      }
      cut(row, rows, col, cols, local);
      position += rows * cols;
      local += rows * cols;
    }
  }
  return blocks;
}

}  // namespace apogee::optim
