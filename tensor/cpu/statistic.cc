// SPDX-License-Identifier: Apache-2.0

// statistic and cum_sum: along the middle dim of [outer, reduce, inner]. A thread has rows
// (inner is 1), or tiles of columns whose partial results stay in the L1 cache.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/row_ops.h"
#include "apogee/tensor/cpu/vec_math.h"

namespace apogee::cpu {
namespace {

constexpr int64_t kTile = 1024;  // columns

// What is subtracted before exp: the maximum, unless it is infinite.
template <typename C>
C Shift(C max) {
  return std::isinf(max) ? C(0) : max;
}

template <typename T>
void LogSumExpOfRow(const T* x, int64_t n, T* y, ComputeType<T>* stat) {
  *stat = LogSumExp(x, n, Shift<ComputeType<T>>);
  *y = Cast<T>(*stat);
}

template <typename T>
void VarianceOfRow(const T* x, int64_t n, double scale, T* y, ComputeType<T>* stat) {
  using C = ComputeType<T>;
  const double mean =
      SumOver<double>(n, [=](int64_t i) { return Load(x[i]); }) / static_cast<double>(n);
  const double sum = SumOver<double>(n, [=](int64_t i) {
    const double rest = static_cast<double>(Load(x[i])) - mean;
    return rest * rest;
  });
  *stat = static_cast<C>(mean);
  *y = Cast<T>(scale * sum);
}

// Columns are reduced in blocks of rows that stay in the cache between two passes.
constexpr int64_t kBlockRows = 32;

// Calls fn(rows, row) for the rows of [begin, end): four at once, so that sums of columns are
// loaded and stored once for four rows, and the last ones alone.
template <typename Fn>
void ForRowsByFour(int64_t begin, int64_t end, const Fn& fn) {
  for (; begin + 4 <= end; begin += 4) fn(std::integral_constant<int, 4>(), begin);
  for (; begin < end; ++begin) fn(std::integral_constant<int, 1>(), begin);
}

template <int rows, typename T, typename C>
void RaiseToMax(const T* __restrict x, int64_t stride, int64_t cols, C* __restrict max) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    C most = max[i];
    for (int r = 0; r < rows; ++r) {
      const C value = Load(x[r * stride + i]);
      most = value > most ? value : most;
    }
    max[i] = most;
  }
}
template <int rows, typename T, typename C>
void AddExp(const T* __restrict x, int64_t stride, const C* __restrict shift, int64_t cols,
            C* __restrict sums) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    C sum = sums[i];
    for (int r = 0; r < rows; ++r) sum += FastExp(Load(x[r * stride + i]) - shift[i]);
    sums[i] = sum;
  }
}

template <typename T>
void LogSumExpOfTile(const T* x, int64_t rows, int64_t stride, int64_t cols, T* y,
                     ComputeType<T>* stat) {
  using C = ComputeType<T>;
  C max[kTile], shift[kTile], block[kTile];
  double sums[kTile] = {};
  std::fill(max, max + cols, -std::numeric_limits<C>::infinity());
  std::fill(shift, shift + cols, C(0));
  for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const int64_t end = std::min(rows, begin + kBlockRows);
    ForRowsByFour(begin, end, [&](auto count, int64_t r) {
      RaiseToMax<count>(x + r * stride, stride, cols, max);
    });
    for (int64_t i = 0; i < cols; ++i) {
      const C next = Shift(max[i]);
      if (next != shift[i] && sums[i] != 0) {
        sums[i] *= std::exp(static_cast<double>(shift[i] - next));
      }
      shift[i] = next;
      block[i] = 0;
    }
    ForRowsByFour(begin, end, [&](auto count, int64_t r) {
      AddExp<count>(x + r * stride, stride, shift, cols, block);
    });
    for (int64_t i = 0; i < cols; ++i) sums[i] += static_cast<double>(block[i]);
  }
  for (int64_t i = 0; i < cols; ++i) {
    stat[i] = shift[i] + static_cast<C>(std::log(sums[i]));
    y[i] = Cast<T>(stat[i]);
  }
}

template <int rows, typename T, typename C>
void AddRows(const T* __restrict x, int64_t stride, int64_t cols, C* __restrict sums) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    C sum = sums[i];
    for (int r = 0; r < rows; ++r) sum += Load(x[r * stride + i]);
    sums[i] = sum;
  }
}
template <int rows, typename T, typename C>
void AddSquares(const T* __restrict x, int64_t stride, const C* __restrict center, int64_t cols,
                C* __restrict rests, C* __restrict squares) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    C rest_sum = rests[i], square_sum = squares[i];
    for (int r = 0; r < rows; ++r) {
      const C rest = Load(x[r * stride + i]) - center[i];
      rest_sum += rest;
      square_sum += rest * rest;
    }
    rests[i] = rest_sum;
    squares[i] = square_sum;
  }
}

// Means and squares of blocks are joined by the formula of Chan, Golub and LeVeque (1979).
template <typename T>
void VarianceOfTile(const T* x, int64_t rows, int64_t stride, int64_t cols, double scale, T* y,
                    ComputeType<T>* stat) {
  using C = ComputeType<T>;
  C center[kTile], rests[kTile], squares[kTile];  // of a block; its mean, rounded, is the center
  double means[kTile] = {}, sums[kTile] = {};
  for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const int64_t end = std::min(rows, begin + kBlockRows);
    for (C* sum : {center, rests, squares}) std::fill(sum, sum + cols, C(0));
    ForRowsByFour(begin, end, [&](auto count, int64_t r) {
      AddRows<count>(x + r * stride, stride, cols, center);
    });
    const double own = static_cast<double>(end - begin), before = static_cast<double>(begin);
    for (int64_t i = 0; i < cols; ++i) center[i] /= static_cast<C>(own);
    ForRowsByFour(begin, end, [&](auto count, int64_t r) {
      AddSquares<count>(x + r * stride, stride, center, cols, rests, squares);
    });
    for (int64_t i = 0; i < cols; ++i) {
      const double shift = static_cast<double>(rests[i]) / own;  // from the center to the mean
      const double rest = static_cast<double>(center[i]) + shift - means[i];
      means[i] += rest * own / (before + own);
      sums[i] += static_cast<double>(squares[i]) - own * shift * shift +
                 rest * rest * before * own / (before + own);
    }
  }
  for (int64_t i = 0; i < cols; ++i) {
    stat[i] = static_cast<C>(means[i]);
    y[i] = Cast<T>(scale * sums[i]);
  }
}

template <typename T>
void StatisticKernel(const DeviceContext& context, const StatisticForwardArgs& args) {
  const T* from = static_cast<const T*>(args.x);
  T* to = static_cast<T*>(args.y);
  ComputeType<T>* stats = static_cast<ComputeType<T>*>(args.stat);
  const int64_t n = args.reduce, inner = args.inner;
  const double scale = args.scale;
  const bool variance = args.kind == Statistic::kVariance;
  ForTiles<kTile>(context, args.outer, n, inner, [=](int64_t o, int64_t first, int64_t count) {
    const T* x = from + o * n * inner + first;
    T* y = to + o * inner + first;
    ComputeType<T>* stat = stats + o * inner + first;
    if (inner == 1) {
      return variance ? VarianceOfRow(x, n, scale, y, stat) : LogSumExpOfRow(x, n, y, stat);
    }
    return variance ? VarianceOfTile(x, n, inner, count, scale, y, stat)
                    : LogSumExpOfTile(x, n, inner, count, y, stat);
  });
}

// The derivative of y by x, for one element.
template <Statistic kind, typename C>
C Derivative(C x, C stat, C scale) {
  if constexpr (kind == Statistic::kLogSumExp) return FastExp(x - stat);
  return scale * (x - stat);
}

template <Statistic kind, typename T>
void StatisticBackward(const DeviceContext& context, const StatisticBackwardArgs& args) {
  using C = ComputeType<T>;
  const T* x = static_cast<const T*>(args.x);
  const C* stat = static_cast<const C*>(args.stat);
  const T* dy = static_cast<const T*>(args.dy);
  T* dx = static_cast<T*>(args.dx);
  const int64_t n = args.reduce, inner = args.inner;
  const C scale = static_cast<C>(2 * args.scale);
  ForRows(context, args.outer * n, inner, [=](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end;) {
      const int64_t o = unit / n;
      // With inner = 1 a run is a part of a row, else one row of columns.
      const int64_t count = inner == 1 ? std::min(end, (o + 1) * n) - unit : inner;
      const T* from = x + unit * inner;
      T* to = dx + unit * inner;
      if (inner == 1) {
        const C center = stat[o], grad = Load(dy[o]);
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) {
          to[i] = Cast<T>(Derivative<kind>(Load(from[i]), center, scale) * grad);
        }
        unit += count;
      } else {
        const C* centers = stat + o * inner;
        const T* grads = dy + o * inner;
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) {
          to[i] = Cast<T>(Derivative<kind>(Load(from[i]), centers[i], scale) * Load(grads[i]));
        }
        ++unit;
      }
    }
  });
}

// Eight neighbours are added up in three steps, so that only one addition per eight waits for the
// one before.
template <typename T>
void CumSumOfRow(const T* from, int64_t n, bool reverse, T* to) {
  typedef double Eight __attribute__((vector_size(64)));
  typedef int64_t Places __attribute__((vector_size(64)));
  const Eight zeros = {};
  double sum = 0;
  int64_t k = 0;
  for (; k + 8 <= n; k += 8) {
    const int64_t first = reverse ? n - 8 - k : k;
    Eight v;
    for (int i = 0; i < 8; ++i) v[i] = static_cast<double>(Load(from[first + i]));
    if (reverse) v = __builtin_shuffle(v, Places{7, 6, 5, 4, 3, 2, 1, 0});
    v += __builtin_shuffle(v, zeros, Places{8, 0, 1, 2, 3, 4, 5, 6});
    v += __builtin_shuffle(v, zeros, Places{8, 8, 0, 1, 2, 3, 4, 5});
    v += __builtin_shuffle(v, zeros, Places{8, 8, 8, 8, 0, 1, 2, 3});
    v += sum;
    sum = v[7];
    if (reverse) v = __builtin_shuffle(v, Places{7, 6, 5, 4, 3, 2, 1, 0});
    for (int i = 0; i < 8; ++i) to[first + i] = Cast<T>(v[i]);
  }
  for (; k < n; ++k) {
    const int64_t at = reverse ? n - 1 - k : k;
    sum += static_cast<double>(Load(from[at]));
    to[at] = Cast<T>(sum);
  }
}

template <typename T>
void CumSumRow(const T* __restrict from, int64_t cols, double* __restrict sums, T* __restrict to) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    sums[i] += static_cast<double>(Load(from[i]));
    to[i] = Cast<T>(sums[i]);
  }
}

template <typename T>
void CumSumKernel(const DeviceContext& context, const CumSumArgs& args) {
  const T* from = static_cast<const T*>(args.x);
  T* to = static_cast<T*>(args.y);
  const int64_t n = args.size, inner = args.inner;
  const bool reverse = args.reverse;
  if (inner == 1) {
    ForRows(context, args.outer, n, [=](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) CumSumOfRow(from + o * n, n, reverse, to + o * n);
    });
    return;
  }
  ForTiles<kTile>(context, args.outer, n, inner, [=](int64_t o, int64_t first, int64_t count) {
    double sums[kTile] = {};
    for (int64_t k = 0; k < n; ++k) {
      const int64_t at = (o * n + (reverse ? n - 1 - k : k)) * inner + first;
      CumSumRow(from + at, count, sums, to + at);
    }
  });
}

}  // namespace

void statistic_forward(const DeviceContext& context, const StatisticForwardArgs& args) {
  DispatchFloat(args.dtype, "statistic_forward",
                [&]<typename T>() { StatisticKernel<T>(context, args); });
}

void statistic_backward(const DeviceContext& context, const StatisticBackwardArgs& args) {
  DispatchFloat(args.dtype, "statistic_backward", [&]<typename T>() {
    if (args.kind == Statistic::kVariance) {
      return StatisticBackward<Statistic::kVariance, T>(context, args);
    }
    StatisticBackward<Statistic::kLogSumExp, T>(context, args);
  });
}

void cum_sum(const DeviceContext& context, const CumSumArgs& args) {
  DispatchFloat(args.dtype, "cum_sum", [&]<typename T>() { CumSumKernel<T>(context, args); });
}

}  // namespace apogee::cpu
