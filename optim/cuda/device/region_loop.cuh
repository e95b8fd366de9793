// SPDX-License-Identifier: Apache-2.0

// Loops over the regions of factored parameters. A block of threads has a tile of kRegionTileRows
// by kRegionTileCols; each of its warps has some of the rows, and each lane the same columns of all
// rows. Private to optim/cuda.
//
//   ForEachRegionTile(context, RegionTasks(args.chunks), Body{...});
//   // in Body::operator()(const RegionTask& task, int64_t tile):
//   const TileOfRegion t(task.region, tile);
//   t.ForEachRow([&](int64_t row, int64_t local) {       // rows of this warp
//     for (int s = 0; s < kSteps; ++s) t.At(s, local, aligned, [&](const auto& at) { ... });
//   });
#ifndef APOGEE_OPTIM_CUDA_DEVICE_REGION_LOOP_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_REGION_LOOP_CUH_

#include <vector>

#include "apogee/optim/core/kernels.h"
#include "apogee/optim/cuda/device/regions.h"
#include "apogee/optim/cuda/device/runs.cuh"

namespace apogee::optim::cuda {

using apogee::cuda::kWarp;

inline constexpr int kRunPack = 4;
// Number of runs of a lane within a row of a tile.
inline constexpr int kSteps = static_cast<int>(kRegionTileCols) / (kWarp * kRunPack);
inline constexpr int kRegionWarps = kTileThreads / kWarp;

struct RegionTask {
  FactoredChunk chunk;
  Region region;
  int64_t first_tile;  // number of its first tile among the tiles of all tasks
  int64_t vectors;     // offset of its tiles' row and column sums
  int64_t order;       // index of the region within its chunk
};

// A task per region. `factored_only`: leaves out chunks that are not factored.
inline std::vector<RegionTask> RegionTasks(std::span<const FactoredChunk> chunks,
                                           bool factored_only = false) {
  std::vector<RegionTask> tasks;
  int64_t tiles = 0, vectors = 0;
  for (const FactoredChunk& chunk : chunks) {
    if (factored_only && chunk.rows == 0) continue;
    int64_t order = 0;
    for (const Region& region : JoinBlocks(chunk.blocks, chunk.row_stride)) {
      tasks.push_back({chunk, region, tiles, vectors, order++});
      tiles += region.tiles();
      if (chunk.rows == 0) continue;
      vectors +=
          region.copies * (region.rows * region.column_tiles() + region.cols * region.row_tiles());
    }
  }
  return tasks;
}

struct TileOfRegion {
  int64_t row, rows;  // within the region
  int64_t col, cols;
  int64_t copy;
  int64_t row_tile, column_tile;
  int64_t global_row, global_column, local, stride;  // of the tile's first element

  __device__ TileOfRegion(const Region& r, int64_t tile) {
    const int64_t column_tiles = (r.cols + kRegionTileCols - 1) / kRegionTileCols;
    const int64_t row_tiles = (r.rows + kRegionTileRows - 1) / kRegionTileRows;
    column_tile = tile % column_tiles;
    row_tile = tile / column_tiles % row_tiles;
    copy = tile / column_tiles / row_tiles;
    row = row_tile * kRegionTileRows;
    rows = r.rows - row < kRegionTileRows ? r.rows - row : kRegionTileRows;
    col = column_tile * kRegionTileCols;
    cols = r.cols - col < kRegionTileCols ? r.cols - col : kRegionTileCols;
    global_row = r.row + copy * r.row_step + row;
    global_column = r.column + copy * r.column_step + col;
    stride = r.stride;
    local = r.local + copy * r.local_step + row * stride + col;
  }

  // The first column of this lane's run number `step`, within the tile.
  static __device__ int64_t ColumnOf(int step) {
    return (int64_t{step} * kWarp + threadIdx.x % kWarp) * kRunPack;
  }
  // Calls fn(row within the tile, local position of the tile's first column in that row).
  template <typename Fn>
  __device__ void ForEachRow(const Fn& fn) const {
    for (int64_t i = threadIdx.x / kWarp; i < rows; i += kRegionWarps) fn(i, local + i * stride);
  }
  // Calls fn(at) for the elements of run number `step` in the row at `row_local`, if it has any.
  // `aligned`: all tensors are aligned for vector loads.
  template <typename Fn>
  __device__ void At(int step, int64_t row_local, bool aligned, const Fn& fn) const {
    ForRun<kRunPack>(row_local + ColumnOf(step), row_local + cols,
                     aligned && row_local % kRunPack == 0, fn);
  }
};

// This lane's numbers from a vector with one number per column; 0 after the last column.
template <typename C>
struct ColumnPacks {
  Pack<C, kRunPack> at[kSteps];

  __device__ ColumnPacks() : at{} {}
  __device__ ColumnPacks(const C* of_tile, int64_t cols) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int k = 0; k < kRunPack; ++k) {
        const int64_t j = TileOfRegion::ColumnOf(s) + k;
        at[s].at[k] = of_tile != nullptr && j < cols ? of_tile[j] : C(0);
      }
    }
  }
};

template <typename Body>
void ForEachRegionTile(const DeviceContext& context, const std::vector<RegionTask>& tasks,
                       const Body& body) {
  ForEachTile(
      context, std::span<const RegionTask>(tasks),
      [](const RegionTask& task) { return task.region.tiles(); }, body);
}

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_REGION_LOOP_CUH_
