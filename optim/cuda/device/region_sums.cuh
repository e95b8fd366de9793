// SPDX-License-Identifier: Apache-2.0

// Sums over the rows and columns of factored parameters, and over all of their elements: first
// within tiles, then over the tiles, in an order that depends only on the sizes. Private to
// optim/cuda.
//
//   struct Terms {
//     // Prepared data of a tile; every thread makes one.
//     struct Tile { __device__ Tile(const Terms&, const FactoredChunk&, const TileOfRegion&); };
//     // Returns the run's terms for the sums of its row and columns; adds to `scalar`.
//     template <typename At>
//     __device__ Pack<C, kRunPack> operator()(const FactoredChunk&, const Tile&, int64_t row,
//                                             int step, const At& at, double& scalar) const;
//   };
//   AddRegionSums<C, S, true, true>(context, tasks, Terms{...});
//
// The sums are added to the chunk's `sums`, laid out as [rows][columns][scalar].
#ifndef APOGEE_OPTIM_CUDA_DEVICE_REGION_SUMS_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_REGION_SUMS_CUH_

#include "apogee/optim/cuda/device/region_loop.cuh"

namespace apogee::optim::cuda {

using apogee::cuda::BlockReduce;
using apogee::cuda::Sum;
using apogee::cuda::WarpReduce;

// Writes the partial sums of each copy of a region: rows as [column tile][row], then columns as
// [row tile][column].
template <typename C, bool kVectors, bool kScalar, typename Terms>
struct RegionSumBody {
  Terms terms;
  C* vectors;
  double* scalars;

  __device__ void operator()(const RegionTask& task, int64_t tile) const {
    const FactoredChunk& chunk = task.chunk;
    const Region& region = task.region;
    const TileOfRegion t(region, tile);
    const typename Terms::Tile prepared(terms, chunk, t);
    const bool has_vectors = kVectors && chunk.rows > 0;
    const int64_t column_tiles = (region.cols + kRegionTileCols - 1) / kRegionTileCols;
    const int64_t row_tiles = (region.rows + kRegionTileRows - 1) / kRegionTileRows;
    C* rows =
        vectors + task.vectors + t.copy * (region.rows * column_tiles + region.cols * row_tiles);
    C* columns = rows + region.rows * column_tiles;
    const bool aligned = terms.Aligned(chunk);
    ColumnPacks<C> column_sums;
    double scalar = 0;
    t.ForEachRow([&](int64_t i, int64_t local) {
      C row_sum = 0;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        t.At(s, local, aligned, [&](const auto& at) {
          const Pack<C, kRunPack> x = terms(chunk, prepared, t.global_row + i, s, at, scalar);
#pragma unroll
          for (int k = 0; k < kRunPack; ++k) {
            if (!at.Has(k)) continue;
            row_sum += x.at[k];
            column_sums.at[s].at[k] += x.at[k];
          }
        });
      }
      if (has_vectors) {
        row_sum = WarpReduce(row_sum, Sum());
        if (threadIdx.x % kWarp == 0) rows[t.column_tile * region.rows + t.row + i] = row_sum;
      }
    });
    if constexpr (kVectors) {
      __shared__ C parts[kRegionWarps][kRegionTileCols];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int k = 0; k < kRunPack; ++k) {
          parts[threadIdx.x / kWarp][TileOfRegion::ColumnOf(s) + k] = column_sums.at[s].at[k];
        }
      }
      __syncthreads();
      for (int64_t j = threadIdx.x; has_vectors && j < t.cols; j += kTileThreads) {
        C sum = 0;
#pragma unroll
        for (int w = 0; w < kRegionWarps; ++w) sum += parts[w][j];
        columns[t.row_tile * region.cols + t.col + j] = sum;
      }
    }
    if constexpr (kScalar) {
      scalar = BlockReduce<kTileThreads>(scalar, Sum());
      if (threadIdx.x == 0) scalars[task.first_tile + tile] = scalar;
    }
  }
};

// Each thread adds up the partial sums of one row or column.
template <typename C, typename S>
struct AddVectorsBody {
  const C* vectors;

  __device__ void operator()(const RegionTask& task, int64_t tile) const {
    const Region& r = task.region;
    const int64_t length = r.rows + r.cols;
    const int64_t index = tile * kTileThreads + threadIdx.x;
    if (index >= r.copies * length) return;
    const int64_t copy = index / length, at = index % length;
    const int64_t column_tiles = (r.cols + kRegionTileCols - 1) / kRegionTileCols;
    const int64_t row_tiles = (r.rows + kRegionTileRows - 1) / kRegionTileRows;
    const C* from = vectors + task.vectors + copy * (r.rows * column_tiles + r.cols * row_tiles);
    S* sums = static_cast<S*>(task.chunk.sums);
    double total = 0;
    if (at < r.rows) {
      for (int64_t t = 0; t < column_tiles; ++t) total += from[t * r.rows + at];
      sums += r.row + copy * r.row_step + at;
    } else {
      const int64_t j = at - r.rows;
      from += r.rows * column_tiles + j;
      for (int64_t t = 0; t < row_tiles; ++t) total += from[t * r.cols];
      sums += task.chunk.rows + r.column + copy * r.column_step + j;
    }
    *sums += static_cast<S>(total);
  }
};

struct ScalarTask {
  void* to;
  int64_t first, count;
};
template <typename S>
struct AddScalarsBody {
  const double* scalars;

  __device__ void operator()(const ScalarTask& task, int64_t) const {
    double total = 0;
    for (int64_t t = threadIdx.x; t < task.count; t += kTileThreads) {
      total += scalars[task.first + t];
    }
    total = BlockReduce<kTileThreads>(total, Sum());
    if (threadIdx.x == 0) *static_cast<S*>(task.to) += static_cast<S>(total);
  }
};

// `vectors`: whether the scalar comes after row and column sums.
template <typename S>
std::vector<ScalarTask> ScalarTasks(const std::vector<RegionTask>& tasks, bool vectors) {
  std::vector<ScalarTask> scalars;
  for (const RegionTask& task : tasks) {
    if (task.order == 0) {
      const int64_t before = vectors ? task.chunk.rows + task.chunk.columns : 0;
      scalars.push_back({static_cast<S*>(task.chunk.sums) + before, task.first_tile, 0});
    }
    scalars.back().count += task.region.tiles();
  }
  return scalars;
}

template <typename C, typename S, bool kVectors, bool kScalar, typename Terms>
void AddRegionSums(const DeviceContext& context, const std::vector<RegionTask>& tasks,
                   const Terms& terms) {
  if (tasks.empty()) return;
  const RegionTask& last = tasks.back();
  int64_t num_vectors = 0;
  for (const RegionTask& task : tasks) {
    const Region& r = task.region;
    if (task.chunk.rows == 0) continue;
    num_vectors = task.vectors + r.copies * (r.rows * r.column_tiles() + r.cols * r.row_tiles());
  }
  const auto bytes = [](bool there, int64_t count, size_t size) {
    return there ? count * static_cast<int64_t>(size) : 0;
  };
  const Workspace vectors(context, bytes(kVectors, num_vectors, sizeof(C)));
  const Workspace scalars(context,
                          bytes(kScalar, last.first_tile + last.region.tiles(), sizeof(double)));
  ForEachRegionTile(
      context, tasks,
      RegionSumBody<C, kVectors, kScalar, Terms>{terms, vectors.data<C>(), scalars.data<double>()});
  // Regions of one chunk may have rows or columns in common, so they are added one after the other.
  bool more = kVectors;
  for (int64_t order = 0; more; ++order) {
    std::vector<RegionTask> turn;
    for (const RegionTask& task : tasks) {
      if (task.order == order && task.chunk.rows > 0) turn.push_back(task);
    }
    more = !turn.empty();
    ForEachTile(
        context, std::span<const RegionTask>(turn),
        [](const RegionTask& task) {
          return CeilDiv(task.region.copies * (task.region.rows + task.region.cols), kTileThreads);
        },
        AddVectorsBody<C, S>{vectors.data<C>()});
  }
  if constexpr (kScalar) {
    const std::vector<ScalarTask> finals = ScalarTasks<S>(tasks, kVectors);
    ForEachTile(
        context, std::span<const ScalarTask>(finals), [](const ScalarTask&) { return int64_t{1}; },
        AddScalarsBody<S>{scalars.data<double>()});
  }
}

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_REGION_SUMS_CUH_
