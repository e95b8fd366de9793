// SPDX-License-Identifier: Apache-2.0

// extreme, statistic and cum_sum: along the middle dim of [outer, reduce, inner]. A warp takes a
// result if the dim is contiguous (inner is 1), else a thread does, with neighbouring results in
// neighbouring threads. The order of additions depends only on the sizes.
#include <cmath>

#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/device/vector_loop.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

constexpr int kStatisticThreads = 256;

// Calls fn(place of the first element, number of the result, lane) in teams of kTeam threads. All
// threads of a warp take part together.
template <int kTeam, typename Fn>
__global__ void __launch_bounds__(kStatisticThreads)
    ResultKernel(int64_t results, int64_t reduce, int64_t inner, Fn fn) {
  const int64_t step = int64_t{gridDim.x} * (kStatisticThreads / kTeam);
  const int64_t first = int64_t{blockIdx.x} * (kStatisticThreads / kTeam) + threadIdx.x / kTeam;
  for (int64_t at = first; at < results; at += step) {
    const int64_t o = at / inner;
    fn(o * reduce * inner + (at - o * inner), at, static_cast<int>(threadIdx.x % kTeam));
  }
}

template <int kTeam, typename Fn>
void ForResults(const DeviceContext& context, int64_t outer, int64_t reduce, int64_t inner,
                const Fn& fn) {
  const int64_t results = outer * inner;
  if (results <= 0) return;
  Launch(context,
         {.blocks = {GridBlocks(context, results, kStatisticThreads / kTeam)},
          .threads = {kStatisticThreads}},
         &ResultKernel<kTeam, Fn>, results, reduce, inner, fn);
}

template <int kTeam, typename C, typename Op>
__device__ __forceinline__ C OverTeam(C x, Op op) {
  if constexpr (kTeam == kWarp) {
    return WarpReduce(x, op);
  } else {
    return x;
  }
}

// A candidate and its place. The extreme element wins; of equal ones, the first; NaN always.
template <Extreme kKind, typename C>
struct Candidate {
  C value;
  int64_t place;

  __device__ bool Beats(const Candidate& other) const {
    const bool nan = value != value, other_nan = other.value != other.value;
    if (nan || other_nan) return nan && (!other_nan || place < other.place);
    if (value == other.value) return place < other.place;
    return kKind == Extreme::kMax ? value > other.value : value < other.value;
  }
};

template <int kTeam, Extreme kKind, typename T>
void ExtremeOf(const DeviceContext& context, const ExtremeArgs& args) {
  using C = ComputeType<T>;
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  int64_t* index = args.index;
  const int64_t n = args.reduce, inner = args.inner;
  ForResults<kTeam>(
      context, args.outer, n, inner, [=] __device__(int64_t first, int64_t at, int lane) {
        // A lane without elements takes the first of all.
        Candidate<kKind, C> best{Load(x + first), 0};
        for (int64_t r = lane; r < n; r += kTeam) {
          const Candidate<kKind, C> next{Load(x + first + r * inner), r};
          if (next.Beats(best)) best = next;
        }
        if constexpr (kTeam == kWarp) {
          for (int offset = kWarp / 2; offset > 0; offset /= 2) {
            const Candidate<kKind, C> other{__shfl_xor_sync(kFullWarp, best.value, offset),
                                            __shfl_xor_sync(kFullWarp, best.place, offset)};
            if (other.Beats(best)) best = other;
          }
        }
        if (lane != 0) return;
        y[at] = Cast<T>(best.value);
        if (index != nullptr) index[at] = best.place;
      });
}

template <int kTeam, typename T>
void LogSumExpOf(const DeviceContext& context, const StatisticForwardArgs& args) {
  using C = ComputeType<T>;
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  C* stat = static_cast<C*>(args.stat);
  const int64_t n = args.reduce, inner = args.inner;
  ForResults<kTeam>(context, args.outer, n, inner,
                    [=] __device__(int64_t first, int64_t at, int lane) {
                      C max = Max::Identity<C>();
                      for (int64_t r = lane; r < n; r += kTeam) {
                        max = std::fmax(max, Load(x + first + r * inner));
                      }
                      max = OverTeam<kTeam>(max, Max());
                      const C shift = std::isinf(max) ? C(0) : max;
                      double sum = 0;
                      for (int64_t r = lane; r < n; r += kTeam) {
                        sum += static_cast<double>(std::exp(Load(x + first + r * inner) - shift));
                      }
                      sum = OverTeam<kTeam>(sum, Sum());
                      if (lane != 0) return;
                      stat[at] = shift + static_cast<C>(std::log(sum));
                      y[at] = Cast<T>(stat[at]);
                    });
}

template <int kTeam, typename T>
void VarianceOf(const DeviceContext& context, const StatisticForwardArgs& args) {
  using C = ComputeType<T>;
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  C* stat = static_cast<C*>(args.stat);
  const int64_t n = args.reduce, inner = args.inner;
  const double scale = args.scale;
  ForResults<kTeam>(context, args.outer, n, inner,
                    [=] __device__(int64_t first, int64_t at, int lane) {
                      double sum = 0;
                      for (int64_t r = lane; r < n; r += kTeam) {
                        sum += static_cast<double>(Load(x + first + r * inner));
                      }
                      const double mean = OverTeam<kTeam>(sum, Sum()) / static_cast<double>(n);
                      double squares = 0;
                      for (int64_t r = lane; r < n; r += kTeam) {
                        const double rest = static_cast<double>(Load(x + first + r * inner)) - mean;
                        squares += rest * rest;
                      }
                      squares = OverTeam<kTeam>(squares, Sum());
                      if (lane != 0) return;
                      stat[at] = static_cast<C>(mean);
                      y[at] = Cast<T>(scale * squares);
                    });
}

template <int kTeam, typename T>
void StatisticOf(const DeviceContext& context, const StatisticForwardArgs& args) {
  if (args.kind == Statistic::kVariance) return VarianceOf<kTeam, T>(context, args);
  LogSumExpOf<kTeam, T>(context, args);
}

template <Statistic kKind, typename T>
void BackwardOf(const DeviceContext& context, const StatisticBackwardArgs& args) {
  using C = ComputeType<T>;
  const T* x = static_cast<const T*>(args.x);
  const C* stat = static_cast<const C*>(args.stat);
  const T* dy = static_cast<const T*>(args.dy);
  T* dx = static_cast<T*>(args.dx);
  const int64_t n = args.reduce, inner = args.inner;
  const C scale = static_cast<C>(2 * args.scale);
  ForEach(context, args.outer * n * inner, [=] __device__(int64_t i) {
    const int64_t at = i / (n * inner) * inner + i % inner;
    const C rest = Load(x + i) - stat[at];
    const C derivative = kKind == Statistic::kLogSumExp ? std::exp(rest) : scale * rest;
    dx[i] = Cast<T>(derivative * Load(dy + at));
  });
}

template <typename T>
void CumSumOf(const DeviceContext& context, const CumSumArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  const int64_t n = args.size, inner = args.inner;
  const bool reverse = args.reverse;
  ForResults<1>(context, args.outer, n, inner, [=] __device__(int64_t first, int64_t, int) {
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      const int64_t at = first + (reverse ? n - 1 - k : k) * inner;
      sum += static_cast<double>(Load(x + at));
      y[at] = Cast<T>(sum);
    }
  });
}

}  // namespace

void extreme(const DeviceContext& context, const ExtremeArgs& args) {
  DispatchFloat(args.dtype, "extreme", [&]<typename T>() {
    if (args.kind == Extreme::kMax) {
      return args.inner == 1 ? ExtremeOf<kWarp, Extreme::kMax, T>(context, args)
                             : ExtremeOf<1, Extreme::kMax, T>(context, args);
    }
    return args.inner == 1 ? ExtremeOf<kWarp, Extreme::kMin, T>(context, args)
                           : ExtremeOf<1, Extreme::kMin, T>(context, args);
  });
}

void statistic_forward(const DeviceContext& context, const StatisticForwardArgs& args) {
  DispatchFloat(args.dtype, "statistic_forward", [&]<typename T>() {
    return args.inner == 1 ? StatisticOf<kWarp, T>(context, args)
                           : StatisticOf<1, T>(context, args);
  });
}

void statistic_backward(const DeviceContext& context, const StatisticBackwardArgs& args) {
  DispatchFloat(args.dtype, "statistic_backward", [&]<typename T>() {
    if (args.kind == Statistic::kVariance) {
      return BackwardOf<Statistic::kVariance, T>(context, args);
    }
    BackwardOf<Statistic::kLogSumExp, T>(context, args);
  });
}

void cum_sum(const DeviceContext& context, const CumSumArgs& args) {
  DispatchFloat(args.dtype, "cum_sum", [&]<typename T>() { CumSumOf<T>(context, args); });
}

}  // namespace apogee::cuda
