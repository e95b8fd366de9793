// SPDX-License-Identifier: Apache-2.0

// The blocks of rows of a parameter (optim/row_blocks.h) joined again to the few regions that a GPU
// is told about, and the tiles that a region is worked on in. Private to optim/cuda.
//
//   for (const Region& region : JoinBlocks(chunk.blocks, chunk.row_stride)) ...
//   element (i, j) of copy c: row region.row + c * region.row_step + i, column alike, at local
//   position region.local + c * region.local_step + i * region.stride + j
//
// A whole parameter is one region, with a copy per matrix of its batch; a part of one that begins
// and ends within a row has one more at either end.
#ifndef APOGEE_OPTIM_CUDA_REGIONS_H_
#define APOGEE_OPTIM_CUDA_REGIONS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "apogee/optim/row_blocks.h"

namespace apogee::optim::cuda {

inline constexpr int64_t kRegionTileRows = 64;
inline constexpr int64_t kRegionTileCols = 512;

struct Region : RowBlock {
  int64_t stride;  // between rows
  int64_t copies;  // that have neither rows nor columns in common
  int64_t row_step, column_step, local_step;

  int64_t row_tiles() const { return (rows + kRegionTileRows - 1) / kRegionTileRows; }
  int64_t column_tiles() const { return (cols + kRegionTileCols - 1) / kRegionTileCols; }
  int64_t tiles() const { return copies * row_tiles() * column_tiles(); }
};

std::vector<Region> JoinBlocks(std::span<const RowBlock> blocks, int64_t row_stride);

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_REGIONS_H_
