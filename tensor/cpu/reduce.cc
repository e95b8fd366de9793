// SPDX-License-Identifier: Apache-2.0

// sum over the middle dim of [outer, reduce, inner]. The reduced dim is split into blocks of fixed
// size, whose partial sums are added in order. So the bits are the same for any number of threads,
// and rounding errors grow with the block, not with the whole dim.
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/row_ops.h"

namespace apogee::cpu {
namespace {

constexpr int64_t kRowBlock = 4096;    // elements of a contiguous row
constexpr int64_t kColumnBlock = 256;  // rows added up column by column
constexpr int64_t kColumnTile = 1024;  // columns whose sums stay in the L1 cache

template <typename Y, typename C>
void Store(const SumArgs& args, C sum, Y* y) {
  const C scaled = sum * static_cast<C>(args.scale);
  *y = Cast<Y>(args.accumulate ? Cast<C>(*y) + scaled : scaled);
}

template <typename X, typename Y>
void SumRows(const DeviceContext& context, const SumArgs& args) {
  using C = WiderCompute<X, Y>;
  const X* x = static_cast<const X*>(args.x);
  Y* y = static_cast<Y*>(args.y);
  const int64_t n = args.reduce;
  if (n <= kRowBlock) {
    ForRows(context, args.outer, n, [=, &args](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        const X* row = x + o * n;
        Store(args, SumOver<C>(n, [=](int64_t i) { return Cast<C>(row[i]); }), y + o);
      }
    });
    return;
  }
  const int64_t blocks = (n + kRowBlock - 1) / kRowBlock;
  const Workspace workspace(context, args.outer * blocks * static_cast<int64_t>(sizeof(double)));
  double* partials = workspace.data<double>();
  ForRows(context, args.outer * blocks, kRowBlock, [=](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit % blocks * kRowBlock;
      const X* row = x + unit / blocks * n + first;
      partials[unit] =
          SumOver<C>(std::min(kRowBlock, n - first), [=](int64_t i) { return Cast<C>(row[i]); });
    }
  });
  for (int64_t o = 0; o < args.outer; ++o) {
    double sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += partials[o * blocks + b];
    Store(args, static_cast<C>(sum), y + o);
  }
}

// sums[i] = sum over the rows r of x[r * stride + i]. It takes four rows at a time, to load the
// sums less often.
template <typename X, typename C>
void SumColumns(const X* x, int64_t stride, int64_t rows, C* sums, int64_t cols) {
  std::fill(sums, sums + cols, C(0));
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const X* a = x + r * stride;
    const X* b = a + stride;
    const X* c = b + stride;
    const X* d = c + stride;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) {
      sums[i] += (Cast<C>(a[i]) + Cast<C>(b[i])) + (Cast<C>(c[i]) + Cast<C>(d[i]));
    }
  }
  for (; r < rows; ++r) {
    const X* a = x + r * stride;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) sums[i] += Cast<C>(a[i]);
  }
}

template <typename X, typename Y>
void SumMiddle(const DeviceContext& context, const SumArgs& args) {
  using C = WiderCompute<X, Y>;
  const X* x = static_cast<const X*>(args.x);
  Y* y = static_cast<Y*>(args.y);
  const int64_t inner = args.inner;
  const int64_t blocks = std::max<int64_t>(1, (args.reduce + kColumnBlock - 1) / kColumnBlock);
  const int64_t tiles = (inner + kColumnTile - 1) / kColumnTile;
  const Workspace workspace(context, args.outer * blocks * inner * static_cast<int64_t>(sizeof(C)));
  C* partials = workspace.data<C>();
  const int64_t unit_size = std::min(args.reduce, kColumnBlock) * std::min(inner, kColumnTile);
  ForRows(context, args.outer * blocks * tiles, unit_size, [=, &args](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t column = unit % tiles * kColumnTile;
      const int64_t block = unit / tiles;  // counted over all outer rows
      const int64_t first = block % blocks * kColumnBlock;
      SumColumns(x + (block / blocks * args.reduce + first) * inner + column, inner,
                 std::min(kColumnBlock, args.reduce - first), partials + block * inner + column,
                 std::min(kColumnTile, inner - column));
    }
  });
  ForRows(context, args.outer, blocks * inner, [=, &args](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      C* sums = partials + o * blocks * inner;
      for (int64_t b = 1; b < blocks; ++b) {
        const C* partial = sums + b * inner;
#pragma omp simd
        for (int64_t i = 0; i < inner; ++i) sums[i] += partial[i];
      }
#pragma omp simd
      for (int64_t i = 0; i < inner; ++i) Store(args, sums[i], y + o * inner + i);
    }
  });
}

}  // namespace

void sum(const DeviceContext& context, const SumArgs& args) {
  if (args.outer == 0 || args.inner == 0) return;
  DispatchFloat(args.x_dtype, "sum", [&]<typename X>() {
    DispatchFloat(args.y_dtype, "sum", [&]<typename Y>() {
      if (args.inner == 1) {
        SumRows<X, Y>(context, args);
      } else {
        SumMiddle<X, Y>(context, args);
      }
    });
  });
}

}  // namespace apogee::cpu
