// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/regions.h"

namespace apogee::optim::cuda {
namespace {

// Joins b to a if b has the next columns of the same rows.
bool JoinColumns(Region& a, const Region& b) {
  if (a.copies != 1 || b.row != a.row || b.rows != a.rows || b.column != a.column + a.cols ||
      b.local != a.local + a.cols || b.stride != a.stride) {
    return false;
  }
  a.cols += b.cols;
  return true;
}

// Joins b to a if b has the next rows of the same columns. A region of one row fits any stride.
bool JoinRows(Region& a, const Region& b) {
  const int64_t stride = a.rows == 1 ? b.local - a.local : a.stride;
  if (a.copies != 1 || b.column != a.column || b.cols != a.cols || b.row != a.row + a.rows ||
      b.local != a.local + a.rows * stride || (b.rows > 1 && b.stride != stride)) {
    return false;
  }
  a.rows += b.rows;
  a.stride = stride;
  return true;
}

// Joins b to a if b is the same region in the next matrix of a batch.
bool JoinCopies(Region& a, const Region& b) {
  if (b.rows != a.rows || b.cols != a.cols || (b.rows > 1 && b.stride != a.stride)) return false;
  const int64_t row = b.row - a.row, column = b.column - a.column, local = b.local - a.local;
  if (a.copies == 1) {
    if (row < a.rows || column < a.cols) return false;
    a.row_step = row;
    a.column_step = column;
    a.local_step = local;
  } else if (row != a.copies * a.row_step || column != a.copies * a.column_step ||
             local != a.copies * a.local_step) {
    return false;
  }
  ++a.copies;
  return true;
}

template <typename Join>
std::vector<Region> Joined(const std::vector<Region>& regions, const Join& join) {
  std::vector<Region> joined;
  for (const Region& region : regions) {
    if (joined.empty() || !join(joined.back(), region)) joined.push_back(region);
  }
  return joined;
}

}  // namespace

std::vector<Region> JoinBlocks(std::span<const RowBlock> blocks, int64_t row_stride) {
  std::vector<Region> regions;
  for (const RowBlock& block : blocks) {
    if (block.rows > 0 && block.cols > 0) regions.push_back({block, row_stride, 1, 0, 0, 0});
  }
  return Joined(Joined(Joined(regions, JoinColumns), JoinRows), JoinCopies);
}

}  // namespace apogee::optim::cuda
