// SPDX-License-Identifier: Apache-2.0

// Cuts the part of a parameter that a rank holds into blocks of rows, the pieces of work of the
// kernels that need sums over the rows and columns of a matrix.
//
//   for (const RowBlock& b : RowBlocks(view.layout())) ...
//   element (i, j) of a block lies at local position b.local + i * stride + j, stride =
//   matrix().cols
//
// The cut depends on the layout alone, so that sums are the same bits for any number of threads.
#ifndef APOGEE_OPTIM_ROW_BLOCKS_H_
#define APOGEE_OPTIM_ROW_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "apogee/comm/layout.h"

namespace apogee::optim {

struct RowBlock {
  int64_t row;     // first row, in [0, batch * rows)
  int64_t column;  // first column, in [0, batch * cols): counted through the batch
  int64_t rows;
  int64_t cols;   // at most kMaxBlockCols
  int64_t local;  // of the first element
};

// A row of a block and what is computed from it stay in the first-level cache.
inline constexpr int64_t kMaxBlockCols = 2048;

// Every local element is in exactly one block, no block reaches over two matrices of a batch.
std::vector<RowBlock> RowBlocks(const comm::Layout& layout);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ROW_BLOCKS_H_
