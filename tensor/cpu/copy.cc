// SPDX-License-Identifier: Apache-2.0

// copy: a cast between strided layouts (tensor/kernels/copy_layout.h). One plane of two dims at a
// time is copied by the cheapest loop that fits: both sides contiguous, transposed in tiles, or
// strided.
#include <cstring>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/kernels/copy_layout.h"

namespace apogee::cpu {
namespace {

template <typename X, typename Y>
void CopySpan(const X* x, Y* y, int64_t n) {
  if constexpr (std::is_same_v<X, Y>) {
    std::memcpy(y, x, static_cast<size_t>(n) * sizeof(X));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = Cast<Y>(x[i]);
  }
}

// y[r, c] = x[r, c], where x is contiguous in r and y in c, through a tile that stays in the L1
// cache.
template <typename X, typename Y>
void CopyTransposed(const X* x, int64_t x_stride, Y* y, int64_t y_stride, int64_t rows,
                    int64_t cols) {
  constexpr int64_t kTile = 32;
  Y tile[kTile][kTile];
  for (int64_t r = 0; r < rows; r += kTile) {
    const int64_t tile_rows = std::min(kTile, rows - r);
    for (int64_t c = 0; c < cols; c += kTile) {
      const int64_t tile_cols = std::min(kTile, cols - c);
      for (int64_t j = 0; j < tile_cols; ++j) {
        const X* from = x + (c + j) * x_stride + r;
        for (int64_t i = 0; i < tile_rows; ++i) tile[i][j] = Cast<Y>(from[i]);
      }
      for (int64_t i = 0; i < tile_rows; ++i) {
        std::memcpy(y + (r + i) * y_stride + c, tile[i],
                    static_cast<size_t>(tile_cols) * sizeof(Y));
      }
    }
  }
}

template <typename X, typename Y>
void CopyPlane(const X* x, Y* y, const CopyDim& row, const CopyDim& col, int64_t rows) {
  if (row.x_stride == 1 && col.y_stride == 1 && col.size > 1 && rows > 1) {
    return CopyTransposed(x, col.x_stride, y, row.y_stride, rows, col.size);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const X* from = x + r * row.x_stride;
    Y* to = y + r * row.y_stride;
    if (col.y_stride == 1 && col.x_stride == 1) {
      CopySpan(from, to, col.size);
    } else if (col.y_stride == 1 && col.x_stride == 0) {
      std::fill(to, to + col.size, Cast<Y>(*from));
    } else {
      for (int64_t c = 0; c < col.size; ++c) to[c * col.y_stride] = Cast<Y>(from[c * col.x_stride]);
    }
  }
}

template <typename X, typename Y>
void CopyKernel(const DeviceContext& context, const CopyArgs& args) {
  const X* x = static_cast<const X*>(args.x);
  Y* y = static_cast<Y*>(args.y);
  const int64_t n = args.shape.numel();
  if (n == 0 || (context.is_dry() && n > DeviceContext::kDryNumel)) return;
  const CopyLayout layout = SimplifyCopy(args);
  const CopyDim row = layout.row(), col = layout.col();
  // One long run is split into ranges for the threads.
  if (n == col.size) {
    ParallelFor(context.num_threads(), n, kGrain, [=](int64_t begin, int64_t end) {
      const CopyDim part{end - begin, col.x_stride, col.y_stride};
      CopyPlane(x + begin * col.x_stride, y + begin * col.y_stride, CopyDim{1, 0, 0}, part, 1);
    });
    return;
  }
  // A work unit is a block of rows of one plane. It is small enough to balance the threads, a whole
  // number of tiles, and large enough that decoding its index costs little.
  const int64_t block = std::clamp<int64_t>(kGrain / col.size & ~int64_t{31}, 32, 4096);
  const int64_t blocks = (row.size + block - 1) / block;
  const int64_t units = n / (row.size * col.size) * blocks;
  const int64_t grain = std::max<int64_t>(1, kGrain / (col.size * std::min(block, row.size)));
  ParallelFor(context.num_threads(), units, grain, [&, x, y, row, col](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit % blocks * block;
      int64_t rest = unit / blocks;
      int64_t x_offset = first * row.x_stride;
      int64_t y_offset = first * row.y_stride;
      for (int d = layout.rank - 3; d >= 0; --d) {
        const int64_t index = rest % layout.dims[d].size;
        rest /= layout.dims[d].size;
        x_offset += index * layout.dims[d].x_stride;
        y_offset += index * layout.dims[d].y_stride;
      }
      CopyPlane(x + x_offset, y + y_offset, row, col, std::min(block, row.size - first));
    }
  });
}

}  // namespace

void copy(const DeviceContext& context, const CopyArgs& args) {
  if (args.x_dtype == args.y_dtype) {
    return DispatchBits(args.x_dtype, [&]<typename T>() { CopyKernel<T, T>(context, args); });
  }
  DispatchAny(args.x_dtype, "copy", [&]<typename X>() {
    DispatchAny(args.y_dtype, "copy", [&]<typename Y>() {
      if constexpr (!std::is_same_v<X, Y>) CopyKernel<X, Y>(context, args);
    });
  });
}

}  // namespace apogee::cpu
