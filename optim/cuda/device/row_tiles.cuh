// SPDX-License-Identifier: Apache-2.0

// Loops over the rows of the matrices of many parameters, of which a rank may hold any part, for
// statistics per row and per column. Private to optim/cuda.
//
// Tiles are kTileRows x kTileCols of the logical matrices, of which this rank may hold a part.
// Each warp goes through some of the rows, and each lane has kRowPack neighbouring columns. A
// column's sum over the warp's rows therefore stays in one lane, and a row's sum over the tile's
// columns is a sum over the warp.
//
//   tile.ForEachRow([&](int64_t row) {                        // counted through the batch
//     tile.ForPack(row, [&](const auto& at) { ... at.template Load<float>(x) ... });
//   });
#ifndef APOGEE_OPTIM_CUDA_DEVICE_ROW_TILES_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_ROW_TILES_CUH_

#include "apogee/layout/layout.h"
#include "apogee/optim/cuda/device/packs.cuh"

namespace apogee::optim::cuda {

inline constexpr int kRowPack = 8;
inline constexpr int64_t kTileCols = apogee::cuda::kWarp * kRowPack;
inline constexpr int64_t kTileRows = 64;
inline constexpr int kTileWarps = kTileThreads / apogee::cuda::kWarp;

// A parameter's matrices and the segments of them that this rank holds, sorted by their begin.
struct HeldMatrix {
  MatrixView matrix;
  const PlacedSegment* segments;  // on the GPU
  int num_segments;

  __host__ __device__ int64_t strips() const { return (matrix.cols + kTileCols - 1) / kTileCols; }
  __host__ __device__ int64_t slabs() const { return (matrix.rows + kTileRows - 1) / kTileRows; }
  __host__ __device__ int64_t tiles() const { return matrix.batch * slabs() * strips(); }
};

// kRowPack neighbours of a row, of which this rank may hold only some: the position of each in the
// local tensor, or -1.
struct Scattered {
  int64_t local[kRowPack];

  __device__ bool Has(int k) const { return local[k] >= 0; }
  template <typename C, typename T>
  __device__ Pack<C, kRowPack> Load(const T* x) const {
    Pack<C, kRowPack> pack;
#pragma unroll
    for (int k = 0; k < kRowPack; ++k) pack.at[k] = Has(k) ? Cast<C>(x[local[k]]) : C(0);
    return pack;
  }
  template <typename T, typename C>
  __device__ void Store(T* y, const Pack<C, kRowPack>& pack) const {
#pragma unroll
    for (int k = 0; k < kRowPack; ++k) {
      if (Has(k)) y[local[k]] = Cast<T>(pack.at[k]);
    }
  }
};

// One tile, from the view of one thread.
class RowTile {
 public:
  // `aligned`: all tensors begin at multiples of 16 bytes.
  __device__ RowTile(const HeldMatrix& held, int64_t tile, bool aligned)
      : held_(held),
        strip_(tile % held.strips()),
        slab_(tile / held.strips() % held.slabs()),
        matrix_(tile / held.strips() / held.slabs()),
        col_(strip_ * kTileCols + int64_t{threadIdx.x} % apogee::cuda::kWarp * kRowPack),
        aligned_(aligned) {}

  __device__ int64_t strip() const { return strip_; }
  __device__ int64_t slab() const { return slab_; }
  // The first column of the tile (first_*) and of this lane, within the matrix and (*batch_col)
  // counted through the batch.
  __device__ int64_t first_col() const { return strip_ * kTileCols; }
  __device__ int64_t col() const { return col_; }
  __device__ int64_t first_batch_col() const { return matrix_ * held_.matrix.cols + first_col(); }
  __device__ int64_t batch_col() const { return matrix_ * held_.matrix.cols + col_; }

  // Calls fn(row) for the rows of this warp; all of its lanes get the same rows.
  template <typename Fn>
  __device__ void ForEachRow(const Fn& fn) const {
    const int64_t begin = slab_ * kTileRows, rows = held_.matrix.rows;
    const int64_t end = begin + kTileRows < rows ? begin + kTileRows : rows;
    for (int64_t row = begin + threadIdx.x / apogee::cuda::kWarp; row < end; row += kTileWarps) {
      fn(matrix_ * rows + row);
    }
  }

  // Calls fn(at) for this lane's elements of the row, if this rank holds any of them.
  template <typename Fn>
  __device__ void ForPack(int64_t row, const Fn& fn) const {
    const int64_t cols = held_.matrix.cols;
    if (col_ >= cols) return;
    const int64_t begin = row * cols + col_;
    const int64_t count = cols - col_ < kRowPack ? cols - col_ : kRowPack;
    int at = Find(begin);
    const int64_t first = LocalOf(begin, at);
    if (aligned_ && first >= 0 && first % kRowPack == 0 && count == kRowPack) {
      const Segment& segment = held_.segments[at].segment;
      if (begin + kRowPack <= segment.begin + segment.length) {
        fn(Neighbours<kRowPack>{first});
        return;
      }
    }
    Scattered pack;
    bool any = false;
#pragma unroll
    for (int k = 0; k < kRowPack; ++k) {
      pack.local[k] = k < count ? LocalOf(begin + k, at) : -1;
      any = any || pack.Has(k);
    }
    if (any) fn(pack);
  }

 private:
  // The first segment that ends after `position`.
  __device__ int Find(int64_t position) const {
    int low = 0, high = held_.num_segments;
    while (low < high) {
      const int middle = (low + high) / 2;
      const Segment& segment = held_.segments[middle].segment;
      if (segment.begin + segment.length > position) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  // The local position of `position`, or -1. `at`, in: the segment of an earlier position, to
  // search from; out: the segment of this one.
  __device__ int64_t LocalOf(int64_t position, int& at) const {
    while (at < held_.num_segments) {
      const PlacedSegment& placed = held_.segments[at];
      if (position < placed.segment.begin) return -1;
      const int64_t inside = position - placed.segment.begin;
      if (inside < placed.segment.length) return placed.local_begin + inside;
      ++at;
    }
    return -1;
  }

  const HeldMatrix& held_;
  int64_t strip_, slab_, matrix_, col_;
  bool aligned_;
};

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_ROW_TILES_CUH_
