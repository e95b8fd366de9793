// SPDX-License-Identifier: Apache-2.0

// copy: a cast between strided layouts (tensor/kernels/copy_layout.h).
//   without gaps      the driver's copy, or a vector loop that casts
//   a transposition   tiles in shared memory, so that x is read and y is written along its
//                     contiguous dim
//   anything else     each thread computes the addresses of a few neighbouring elements of y; also
//                     for broadcasts
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/divisor.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/device/vector_loop.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/kernels/copy_layout.h"

namespace apogee::cuda {
namespace {

// The largest number of elements of one launch, so that its indices fit in 32 bits.
constexpr int64_t kMaxPart = int64_t{1} << 30;

// Copies between floats, and within one dtype, are frequent in training and get all kernels. Other
// pairs of dtypes get only the strided kernel.
template <typename T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || std::is_class_v<T>;
template <typename X, typename Y>
constexpr bool kOften = std::is_same_v<X, Y> || (kIsFloat<X> && kIsFloat<Y>);

struct Offsets {
  int64_t x = 0, y = 0;
};

// Computes the offsets of elements that are counted row-major over some dims.
struct Walk {
  struct Dim {
    Divisor size;
    int64_t x_stride, y_stride;
  };
  Dim dims[Shape::kMaxRank + 2];
  int rank = 0;

  Walk(const CopyDim* from, int count) : rank(count) {
    for (int d = 0; d < count; ++d) {
      dims[d] = {Divisor(from[d].size), from[d].x_stride, from[d].y_stride};
    }
  }
  __device__ Offsets At(uint32_t index) const {
    Offsets at;
    for (int d = rank - 1; d >= 0; --d) {
      const Dim& dim = dims[d];
      const uint32_t outer = d > 0 ? dim.size.Divide(index) : 0;
      const uint32_t here = index - outer * dim.size.value;
      at.x += here * dim.x_stride;
      at.y += here * dim.y_stride;
      index = outer;
    }
    return at;
  }
};

// Copies kCount neighbours of y at a time, which are x_inner apart in x.
template <typename X, typename Y, int kCount>
__global__ void __launch_bounds__(256)
    StridedKernel(const X* x, Y* y, uint32_t count, Walk walk, int64_t x_inner) {
  const uint32_t step = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const Offsets at = walk.At(i);
    const X* from = x + at.x;
    Vector<Y, kCount> result;
    if (x_inner == 1) {
      const Vector<X, kCount> values = LoadVector<kCount>(from);
#pragma unroll
      for (int k = 0; k < kCount; ++k) result.at[k] = Cast<Y>(values.at[k]);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) result.at[k] = Cast<Y>(from[k * x_inner]);
    }
    StoreVector(y + at.y, result);
  }
}

// Whether kCount neighbours are an aligned vector on both sides.
template <typename X, typename Y, int kCount>
bool FitsVectors(const X* x, const Y* y, const CopyLayout& layout) {
  const CopyDim& col = layout.col();
  if (col.y_stride != 1 || col.size % kCount != 0 || !IsAligned16(y)) return false;
  const bool x_vectors = col.x_stride == 1;
  if (x_vectors && !IsAligned16(x)) return false;
  for (int d = 0; d < layout.rank - 1; ++d) {
    if (layout.dims[d].y_stride % kCount != 0) return false;
    if (x_vectors && layout.dims[d].x_stride % kCount != 0) return false;
  }
  return true;
}

template <typename X, typename Y, int kCount>
void CopyStrided(const DeviceContext& context, const X* x, Y* y, CopyLayout layout, int64_t n) {
  CopyDim& col = layout.dims[layout.rank - 1];
  const int64_t x_inner = kCount == 1 ? 1 : col.x_stride;
  col = {col.size / kCount, col.x_stride * kCount, col.y_stride * kCount};
  Launch(context, {.blocks = {GridBlocks(context, n / kCount, 256)}}, &StridedKernel<X, Y, kCount>,
         x, y, n / kCount, Walk(layout.dims, layout.rank), x_inner);
}

constexpr int kTile = 64;

struct Plane {
  uint32_t rows, cols;
  int64_t x_stride, y_stride;  // from column to column in x, from row to row in y
  Divisor row_tiles, col_tiles;
};

// y[r, c] = x[r, c], where x is contiguous in r and y in c. A block per tile.
template <typename X, typename Y>
__global__ void __launch_bounds__(256) TransposeKernel(const X* x, Y* y, Plane plane, Walk planes) {
  // Rows are padded by one bank, so that reading down a column meets every bank.
  __shared__ Y tile[kTile][kTile + (sizeof(Y) < 4 ? 4 / sizeof(Y) : 1)];
  const uint32_t strip = plane.col_tiles.Divide(blockIdx.x);
  const uint32_t index = plane.row_tiles.Divide(strip);
  const uint32_t first_row = (strip - index * plane.row_tiles.value) * kTile;
  const uint32_t first_col = (blockIdx.x - strip * plane.col_tiles.value) * kTile;
  const Offsets at = planes.At(index);
  x += at.x + first_row + first_col * plane.x_stride;
  y += at.y + first_col + first_row * plane.y_stride;
  const uint32_t rows = min(plane.rows - first_row, uint32_t{kTile});
  const uint32_t cols = min(plane.cols - first_col, uint32_t{kTile});
#pragma unroll
  for (uint32_t i = 0; i < kTile * kTile; i += 256) {
    const uint32_t r = (i + threadIdx.x) % kTile, c = (i + threadIdx.x) / kTile;
    if (r < rows && c < cols) tile[c][r] = Cast<Y>(x[r + c * plane.x_stride]);
  }
  __syncthreads();
#pragma unroll
  for (uint32_t i = 0; i < kTile * kTile; i += 256) {
    const uint32_t c = (i + threadIdx.x) % kTile, r = (i + threadIdx.x) / kTile;
    if (r < rows && c < cols) y[c + r * plane.y_stride] = tile[c][r];
  }
}

// Whether it is a transposition of planes that are not much smaller than a tile.
bool IsTransposition(const CopyLayout& layout) {
  constexpr int64_t kLeast = 16;
  return layout.row().x_stride == 1 && layout.col().y_stride == 1 && layout.row().size >= kLeast &&
         layout.col().size >= kLeast;
}

template <typename X, typename Y>
void CopyTransposed(const DeviceContext& context, const X* x, Y* y, const CopyLayout& layout,
                    int64_t n) {
  const CopyDim &row = layout.row(), &col = layout.col();
  const int64_t row_tiles = CeilDiv(row.size, kTile), col_tiles = CeilDiv(col.size, kTile);
  const int64_t tiles = n / (row.size * col.size) * row_tiles * col_tiles;
  const Plane plane{static_cast<uint32_t>(row.size),
                    static_cast<uint32_t>(col.size),
                    col.x_stride,
                    row.y_stride,
                    Divisor(row_tiles),
                    Divisor(col_tiles)};
  Launch(context, {.blocks = {static_cast<unsigned>(tiles)}}, &TransposeKernel<X, Y>, x, y, plane,
         Walk(layout.dims, layout.rank - 2));
}

template <typename X, typename Y>
void CopyContiguous(const DeviceContext& context, const X* x, Y* y, int64_t n) {
  if constexpr (std::is_same_v<X, Y>) {
    const StreamContext& gpu = StreamContext::Of(context);
    gpu.Use();
    CheckCuda(
        cudaMemcpyAsync(y, x, static_cast<size_t>(n) * sizeof(X), cudaMemcpyDefault, gpu.stream()),
        "copy");
  } else {
    ForEachVector<kWidth<X, Y>>(context, n, IsAligned16(x, y),
                                [=] __device__(int64_t i, auto width) {
                                  const auto values = LoadVector<decltype(width)::value>(x + i);
                                  Vector<Y, decltype(width)::value> result;
#pragma unroll
                                  for (int k = 0; k < width; ++k)
                                    result.at[k] = Cast<Y>(values.at[k]);
                                  StoreVector(y + i, result);
                                });
  }
}

template <typename X, typename Y>
void CopyLayoutOf(const DeviceContext& context, const X* x, Y* y, const CopyLayout& layout) {
  int64_t n = 1;
  for (int d = 0; d < layout.rank; ++d) n *= layout.dims[d].size;
  const CopyDim& col = layout.col();
  if (n == 0) return;
  if (n == col.size && col.x_stride == 1 && col.y_stride == 1) {
    return CopyContiguous(context, x, y, n);
  }
  if (n > kMaxPart) {
    int d = 0;
    while (layout.dims[d].size == 1) ++d;
    CopyLayout first = layout, second = layout;
    first.dims[d].size /= 2;
    second.dims[d].size -= first.dims[d].size;
    CopyLayoutOf(context, x, y, first);
    return CopyLayoutOf(context, x + first.dims[d].size * layout.dims[d].x_stride,
                        y + first.dims[d].size * layout.dims[d].y_stride, second);
  }
  if constexpr (kOften<X, Y>) {
    if (IsTransposition(layout)) return CopyTransposed(context, x, y, layout, n);
    constexpr int kCount = kWidth<X, Y>;
    if (FitsVectors<X, Y, kCount>(x, y, layout)) {
      return CopyStrided<X, Y, kCount>(context, x, y, layout, n);
    }
  }
  CopyStrided<X, Y, 1>(context, x, y, layout, n);
}

template <typename X, typename Y>
void Copy(const DeviceContext& context, const CopyArgs& args) {
  CopyLayoutOf(context, static_cast<const X*>(args.x), static_cast<Y*>(args.y), SimplifyCopy(args));
}

}  // namespace

void copy(const DeviceContext& context, const CopyArgs& args) {
  if (args.x_dtype == args.y_dtype) {
    return DispatchBits(args.x_dtype, [&]<typename T>() { Copy<T, T>(context, args); });
  }
  DispatchAny(args.x_dtype, "copy", [&]<typename X>() {
    DispatchAny(args.y_dtype, "copy", [&]<typename Y>() {
      if constexpr (!std::is_same_v<X, Y>) Copy<X, Y>(context, args);
    });
  });
}

}  // namespace apogee::cuda
