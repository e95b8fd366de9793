// SPDX-License-Identifier: Apache-2.0

// Joins the blocks of rows of a parameter (optim/core/row_blocks.h) to a few regions for a GPU, and
// cuts regions into tiles. Private to optim/cuda.
//
//   for (const Region& region : JoinBlocks(chunk.blocks, chunk.row_stride)) ...
//
// Element (i, j) of copy c of a region is at
//   row             region.row + c * region.row_step + i
//   column          region.column + c * region.column_step + j
//   local position  region.local + c * region.local_step + i * region.stride + j
// A whole parameter is one region, with a copy per matrix of its batch. A part that begins or ends
// within a row has one more region at that end.
#ifndef APOGEE_OPTIM_CUDA_DEVICE_REGIONS_H_
#define APOGEE_OPTIM_CUDA_DEVICE_REGIONS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "apogee/optim/core/row_blocks.h"

namespace apogee::optim::cuda {

inline constexpr int64_t kRegionTileRows = 64;
inline constexpr int64_t kRegionTileCols = 512;

struct Region : RowBlock {
  int64_t stride;  // between rows
  int64_t copies;  // copies have no rows and no columns in common
  int64_t row_step, column_step, local_step;

  int64_t row_tiles() const { return (rows + kRegionTileRows - 1) / kRegionTileRows; }
  int64_t column_tiles() const { return (cols + kRegionTileCols - 1) / kRegionTileCols; }
  int64_t tiles() const { return copies * row_tiles() * column_tiles(); }
};

std::vector<Region> JoinBlocks(std::span<const RowBlock> blocks, int64_t row_stride);

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_REGIONS_H_
