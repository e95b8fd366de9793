// SPDX-License-Identifier: Apache-2.0

// RowBlocks: cuts the part of a parameter that a rank holds into blocks of rows. Kernels that need
// sums over the rows and columns of a matrix work on one block at a time.
//
//   for (const RowBlock& b : RowBlocks(view.layout())) ...
//
// With stride = layout.matrix().cols, element (i, j) of block b is at local position
//   b.local + i * stride + j
// The cut depends only on the layout, so sums are the same bits for any number of threads.
#ifndef APOGEE_OPTIM_CORE_ROW_BLOCKS_H_
#define APOGEE_OPTIM_CORE_ROW_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "apogee/layout/layout.h"

namespace apogee::optim {

struct RowBlock {
  int64_t row;     // first row, in [0, batch * rows): counted through the batch
  int64_t column;  // first column, in [0, batch * cols): counted through the batch
  int64_t rows;
  int64_t cols;   // at most kMaxBlockCols
  int64_t local;  // position of the first element in the local tensor
};

// Small enough for a row of a block and the numbers computed from it to stay in the L1 cache.
inline constexpr int64_t kMaxBlockCols = 2048;

// Every local element is in exactly one block. A block never contains parts of two matrices of a
// batch.
std::vector<RowBlock> RowBlocks(const Layout& layout);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_ROW_BLOCKS_H_
