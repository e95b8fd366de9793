// SPDX-License-Identifier: Apache-2.0

// sum over the middle dim of [outer, reduce, inner]. A thread adds up only a few elements, and long
// sums take several passes over partial sums, so rounding errors do not grow with the whole dim.
// The order of additions depends only on the sizes.
#include <utility>

#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/device/vector_loop.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

constexpr int64_t kWarpRow = 1024;    // elements of a row that one warp adds up
constexpr int64_t kBlockRow = 16384;  // elements of a row that one block adds up
constexpr int64_t kColumnPart = 256;  // rows that are added up column by column in one pass
constexpr int kThreads = 256;

// Stores the sums of the last pass.
template <typename Y, typename C>
struct Finish {
  Y* y;
  C scale;
  bool accumulate;

  template <typename S>
  __device__ void operator()(int64_t at, S sum) const {
    const C scaled = static_cast<C>(sum) * scale;
    y[at] = Cast<Y>(accumulate ? static_cast<C>(Load(y + at)) + scaled : scaled);
  }
};
// Stores the sums of the passes before it.
template <typename P>
struct Keep {
  P* partials;

  template <typename S>
  __device__ void operator()(int64_t at, S sum) const {
    partials[at] = static_cast<P>(sum);
  }
};

// Sums parts of rows, part_size elements each, with kTeam threads per part. Lane l takes vectors l,
// l + kTeam, ... and has one sum for each element k of a vector. The order is the same if elements
// cannot be loaded as vectors.
template <int kTeam, typename X, typename C, typename Store>
__global__ void __launch_bounds__(kThreads)
    RowKernel(const X* x, int64_t units, int64_t parts, int64_t row, int64_t part_size,
              bool aligned, Store store) {
  constexpr int kCount = kWidth<X>;
  const int64_t unit = int64_t{blockIdx.x} * (kThreads / kTeam) + threadIdx.x / kTeam;
  if (unit >= units) return;  // only whole warps return, and no thread if the team is a block
  const int64_t first = unit % parts * part_size;
  const int64_t n = min(part_size, row - first);
  x += unit / parts * row + first;
  const int lane = threadIdx.x % kTeam;
  C sums[kCount] = {};
#pragma unroll 4
  for (int64_t i = int64_t{lane} * kCount; i < n; i += int64_t{kTeam} * kCount) {
    if (aligned && i + kCount <= n) {
      const Vector<X, kCount> values = LoadVector<kCount>(x + i);
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k] += static_cast<C>(Load(values.at + k));
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        if (i + k < n) sums[k] += static_cast<C>(Load(x + i + k));
      }
    }
  }
#pragma unroll
  for (int stride = kCount / 2; stride > 0; stride /= 2) {
#pragma unroll
    for (int k = 0; k < stride; ++k) sums[k] += sums[k + stride];
  }
  C sum;
  if constexpr (kTeam == kWarp) {
    sum = WarpReduce(sums[0], Sum());
  } else {
    sum = BlockReduce<kThreads>(sums[0], Sum());
  }
  if (lane == 0) store(unit, sum);
}

template <typename X, typename C, typename Store>
void LaunchRows(const DeviceContext& context, const X* x, int64_t outer, int64_t row,
                int64_t part_size, const Store& store) {
  const int64_t parts = std::max<int64_t>(1, CeilDiv(row, part_size)), units = outer * parts;
  const bool aligned = IsAligned16(x) && (outer == 1 || row % kWidth<X> == 0);
  const auto launch = [&](auto kernel, int64_t per_block) {
    Launch(context, {.blocks = {static_cast<unsigned>(CeilDiv(units, per_block))}}, kernel, x,
           units, parts, row, part_size, aligned, store);
  };
  if (row <= kWarpRow) {
    launch(&RowKernel<kWarp, X, C, Store>, kThreads / kWarp);
  } else {
    launch(&RowKernel<kThreads, X, C, Store>, 1);
  }
}

// Sums over partial sums are f64, as on the CPU.
template <typename X, typename C, typename Store>
void SumRows(const DeviceContext& context, const X* x, int64_t outer, int64_t row,
             const Store& store) {
  if (row <= kBlockRow) return LaunchRows<X, C>(context, x, outer, row, kBlockRow, store);
  const int64_t parts = CeilDiv(row, kBlockRow);
  const Workspace workspace(context, outer * parts * static_cast<int64_t>(sizeof(double)));
  double* partials = workspace.data<double>();
  LaunchRows<X, C>(context, x, outer, row, kBlockRow, Keep<double>{partials});
  SumRows<double, double>(context, partials, outer, parts, store);
}

// Sums column by column. Neighbouring lanes take neighbouring columns, kCount each, of one part of
// one outer index. The groups of a block take rows in turn, and the first group adds their sums in
// order.
template <int kCount, typename X, typename C, typename Store>
__global__ void __launch_bounds__(kThreads) ColumnKernel(const X* x, int64_t units, int64_t parts,
                                                         int64_t rows, int64_t inner, Store store) {
  __shared__ C shared[kThreads * kCount];
  const int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t vectors = inner / kCount;
  const int64_t strip = unit / vectors;  // counted over all outer indices
  const int64_t column = unit % vectors * kCount;
  const int64_t first = strip % parts * kColumnPart;
  const int64_t end = min(first + kColumnPart, rows);
  C sums[kCount] = {};
  if (unit < units) {
    x += strip / parts * rows * inner + column;
#pragma unroll 4
    for (int64_t r = first + threadIdx.y; r < end; r += blockDim.y) {
      const Vector<X, kCount> values = LoadVector<kCount>(x + r * inner);
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k] += static_cast<C>(Load(values.at + k));
    }
  }
  // The columns of a lane are stored apart, so that lanes meet different banks.
  const unsigned place = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kCount; ++k) shared[k * kThreads + place] = sums[k];
  __syncthreads();
  if (threadIdx.y != 0 || unit >= units) return;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    C sum = sums[k];
    for (unsigned group = 1; group < blockDim.y; ++group) {
      sum += shared[k * kThreads + group * blockDim.x + threadIdx.x];
    }
    store(strip * inner + column + k, sum);
  }
}

template <typename X, typename C, typename Store>
void SumColumns(const DeviceContext& context, const X* x, int64_t outer, int64_t rows,
                int64_t inner, const Store& store) {
  const int64_t parts = std::max<int64_t>(1, CeilDiv(rows, kColumnPart));
  // A few rows are not worth several groups.
  const unsigned groups = rows < 32 ? 1 : 8, lanes = kThreads / groups;
  const auto launch = [&](auto count, const auto& to) {
    constexpr int kCount = decltype(count)::value;
    const int64_t units = outer * parts * (inner / kCount);
    Launch(context,
           {.blocks = {static_cast<unsigned>(CeilDiv(units, lanes))}, .threads = {lanes, groups}},
           &ColumnKernel<kCount, X, C, std::remove_cvref_t<decltype(to)>>, x, units, parts, rows,
           inner, to);
  };
  const auto launch_widest = [&](const auto& to) {
    if (IsAligned16(x) && inner % kWidth<X> == 0) {
      launch(std::integral_constant<int, kWidth<X>>(), to);
    } else {
      launch(std::integral_constant<int, 1>(), to);
    }
  };
  if (parts == 1) return launch_widest(store);
  const Workspace workspace(context, outer * parts * inner * static_cast<int64_t>(sizeof(C)));
  C* partials = workspace.data<C>();
  launch_widest(Keep<C>{partials});
  SumColumns<C, C>(context, partials, outer, parts, inner, store);
}

template <typename X, typename Y>
void Reduce(const DeviceContext& context, const SumArgs& args) {
  using C =
      std::conditional_t<std::is_same_v<X, double> || std::is_same_v<Y, double>, double, float>;
  const X* x = static_cast<const X*>(args.x);
  const Finish<Y, C> store{static_cast<Y*>(args.y), static_cast<C>(args.scale), args.accumulate};
  if (args.inner == 1) {
    SumRows<X, C>(context, x, args.outer, args.reduce, store);
  } else {
    SumColumns<X, C>(context, x, args.outer, args.reduce, args.inner, store);
  }
}

}  // namespace

void sum(const DeviceContext& context, const SumArgs& args) {
  if (args.outer == 0 || args.inner == 0) return;
  DispatchFloat(args.x_dtype, "sum", [&]<typename X>() {
    DispatchFloat(args.y_dtype, "sum", [&]<typename Y>() { Reduce<X, Y>(context, args); });
  });
}

}  // namespace apogee::cuda
