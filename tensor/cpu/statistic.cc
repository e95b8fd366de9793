// SPDX-License-Identifier: Apache-2.0

// extreme, statistic and cum_sum: along the middle dim of [outer, reduce, inner]. A thread has rows
// (inner is 1), or tiles of columns whose partial results stay in the L1 cache.
#include <cmath>
#include <limits>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/row_ops.h"
#include "apogee/tensor/cpu/vec_math.h"

namespace apogee::cpu {
namespace {

constexpr int64_t kTile = 512;  // columns

// Calls fn(o, first, count) for tiles of columns of each outer index, on the context's threads.
template <typename Fn>
void ForTiles(const DeviceContext& context, int64_t outer, int64_t reduce, int64_t inner,
              const Fn& fn) {
  const int64_t tiles = (inner + kTile - 1) / kTile;
  ForRows(context, outer * tiles, reduce * std::min(inner, kTile), [=](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit % tiles * kTile;
      fn(unit / tiles, first, std::min(kTile, inner - first));
    }
  });
}

// Whether `a` stays the extreme when `b` follows. NaN stays.
template <Extreme kind, typename C>
bool Stays(C a, C b) {
  if constexpr (kind == Extreme::kMax) return a != a || a >= b;
  return a != a || a <= b;
}

template <Extreme kind, typename T>
void ExtremeOfRow(const T* x, int64_t n, T* y, int64_t* index) {
  using C = ComputeType<T>;
  const C found = ReduceOver(
      n, Load(x[0]), [=](int64_t i) { return Load(x[i]); },
      [](C a, C b) { return Stays<kind>(a, b) ? a : b; });
  *y = Cast<T>(found);
  if (index == nullptr) return;
  int64_t at = 0;
  while (!(Load(x[at]) == found || Load(x[at]) != Load(x[at]))) ++at;
  *index = at;
}

template <Extreme kind, typename T>
void ExtremeOfTile(const T* x, int64_t rows, int64_t stride, int64_t cols, T* y, int64_t* index) {
  using C = ComputeType<T>;
  C best[kTile];
  int32_t places[kTile] = {};
  for (int64_t i = 0; i < cols; ++i) best[i] = Load(x[i]);
  for (int64_t r = 1; r < rows; ++r) {
    const T* row = x + r * stride;
    const int32_t place = static_cast<int32_t>(r);
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) {
      const C value = Load(row[i]);
      const bool stays = Stays<kind>(best[i], value);
      best[i] = stays ? best[i] : value;
      places[i] = stays ? places[i] : place;
    }
  }
  for (int64_t i = 0; i < cols; ++i) y[i] = Cast<T>(best[i]);
  for (int64_t i = 0; index != nullptr && i < cols; ++i) index[i] = places[i];
}

template <Extreme kind, typename T>
void ExtremeKernel(const DeviceContext& context, const ExtremeArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  int64_t* index = args.index;
  const int64_t n = args.reduce, inner = args.inner;
  ForTiles(context, args.outer, n, inner, [=](int64_t o, int64_t first, int64_t count) {
    const int64_t at = o * inner + first;
    int64_t* const places = index == nullptr ? nullptr : index + at;
    if (inner == 1) return ExtremeOfRow<kind>(x + o * n, n, y + at, places);
    ExtremeOfTile<kind>(x + o * n * inner + first, n, inner, count, y + at, places);
  });
}

// What is subtracted before exp: the maximum, unless it is infinite.
template <typename C>
C Shift(C max) {
  return std::isinf(max) ? C(0) : max;
}

// Sums are in f64, so that their errors do not grow with the row.
template <typename T>
void LogSumExpOfRow(const T* x, int64_t n, T* y, ComputeType<T>* stat) {
  using C = ComputeType<T>;
  const C shift = Shift(RowMax(x, n));
  const double sum = SumOver<double>(n, [=](int64_t i) { return FastExp(Load(x[i]) - shift); });
  *stat = shift + static_cast<C>(std::log(sum));
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

template <typename T>
void LogSumExpOfTile(const T* x, int64_t rows, int64_t stride, int64_t cols, T* y,
                     ComputeType<T>* stat) {
  using C = ComputeType<T>;
  C shifts[kTile];
  double sums[kTile] = {};
  std::fill(shifts, shifts + cols, -std::numeric_limits<C>::infinity());
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * stride;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) {
      const C value = Load(row[i]);
      shifts[i] = value > shifts[i] ? value : shifts[i];
    }
  }
  for (int64_t i = 0; i < cols; ++i) shifts[i] = Shift(shifts[i]);
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * stride;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) {
      sums[i] += static_cast<double>(FastExp(Load(row[i]) - shifts[i]));
    }
  }
  for (int64_t i = 0; i < cols; ++i) {
    stat[i] = shifts[i] + static_cast<C>(std::log(sums[i]));
    y[i] = Cast<T>(stat[i]);
  }
}

template <typename T>
void VarianceOfTile(const T* x, int64_t rows, int64_t stride, int64_t cols, double scale, T* y,
                    ComputeType<T>* stat) {
  using C = ComputeType<T>;
  double means[kTile] = {}, sums[kTile] = {};
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * stride;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) means[i] += static_cast<double>(Load(row[i]));
  }
  for (int64_t i = 0; i < cols; ++i) means[i] /= static_cast<double>(rows);
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * stride;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) {
      const double rest = static_cast<double>(Load(row[i])) - means[i];
      sums[i] += rest * rest;
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
  ForTiles(context, args.outer, n, inner, [=](int64_t o, int64_t first, int64_t count) {
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

template <typename T>
void CumSumKernel(const DeviceContext& context, const CumSumArgs& args) {
  const T* from = static_cast<const T*>(args.x);
  T* to = static_cast<T*>(args.y);
  const int64_t n = args.size, inner = args.inner;
  const bool reverse = args.reverse;
  ForTiles(context, args.outer, n, inner, [=](int64_t o, int64_t first, int64_t count) {
    double sums[kTile] = {};
    for (int64_t k = 0; k < n; ++k) {
      const int64_t at = (o * n + (reverse ? n - 1 - k : k)) * inner + first;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        sums[i] += static_cast<double>(Load(from[at + i]));
        to[at + i] = Cast<T>(sums[i]);
      }
    }
  });
}

}  // namespace

void extreme(const DeviceContext& context, const ExtremeArgs& args) {
  DispatchFloat(args.dtype, "extreme", [&]<typename T>() {
    if (args.kind == Extreme::kMax) return ExtremeKernel<Extreme::kMax, T>(context, args);
    ExtremeKernel<Extreme::kMin, T>(context, args);
  });
}

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
