// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <vector>

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/block_loop.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {
namespace {

template <typename C>
struct Coefficients {
  C grad_scale, beta1, beta2, one_minus_beta2, eps, step_size, growth, v_scale, limit;
};

// kClamp: 0: does not clamp; 1: clamps before the step; 2: clamps after it.
template <typename C, int kClamp>
void Loop(int64_t n, const Coefficients<C> c, C* __restrict weight, const C* __restrict grad,
          C* __restrict delta, C* __restrict exp_avg_sq) {
  const bool drop = c.grad_scale == 0;
  for (int64_t i = 0; i < n; ++i) {
    C w = weight[i];
    const C g = drop ? C{0} : c.grad_scale * grad[i];
    const C v = c.beta2 * exp_avg_sq[i] + c.one_minus_beta2 * g * g;
    exp_avg_sq[i] = v;
    const C step = c.step_size * (g / (std::sqrt(v * c.v_scale) + c.eps));
    const C d = c.beta1 * delta[i] + step + c.growth * w;
    delta[i] = d;
    if constexpr (kClamp == 1) w = ClampTo(w, c.limit);
    w += d;
    if constexpr (kClamp == 2) w = ClampTo(w, c.limit);
    weight[i] = w;
  }
}

template <typename C>
void Run(const DeviceContext& context, const ScaledAdamArgs& args) {
  ForEachUpdate<C>(
      context, args.chunks,
      [&](const ScaledAdamChunk& chunk, int64_t begin, int64_t n, C* w, const C* grad) {
        const Coefficients<C> c{static_cast<C>(args.grad_scale), static_cast<C>(args.beta1),
                                static_cast<C>(args.beta2),      static_cast<C>(1 - args.beta2),
                                static_cast<C>(args.eps),        static_cast<C>(chunk.step[0]),
                                static_cast<C>(chunk.step[1]),   static_cast<C>(chunk.v_scale),
                                static_cast<C>(chunk.limit)};
        C* delta = static_cast<C*>(chunk.delta) + begin;
        C* exp_avg_sq = static_cast<C*>(chunk.exp_avg_sq) + begin;
        if (std::isinf(chunk.limit)) {
          Loop<C, 0>(n, c, w, grad, delta, exp_avg_sq);
        } else if (args.clamp_before) {
          Loop<C, 1>(n, c, w, grad, delta, exp_avg_sq);
        } else {
          Loop<C, 2>(n, c, w, grad, delta, exp_avg_sq);
        }
      });
}

// Eight f64 lanes, written out so that the order of additions is the same for every instruction
// set.
constexpr int kLanes = 8;
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));
using FloatLanes = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));
using DoubleLanes = double __attribute__((vector_size(kLanes * sizeof(double)), aligned(8)));
inline Lanes Load(const float* x) {
  return __builtin_convertvector(*reinterpret_cast<const FloatLanes*>(x), Lanes);
}
inline Lanes Load(const double* x) { return *reinterpret_cast<const DoubleLanes*>(x); }
inline double Total(const Lanes& x) {
  double total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += x[lane];
  return total;
}

struct Sums {
  double weight_grad = 0, grad_squares = 0, weight_squares = 0;
};

// Two sets of lanes, so that an addition need not wait for the previous one.
template <bool kAll, typename C>
void AddDots(const C* w, const C* g, int64_t n, Sums& sums) {
  Lanes wg[2] = {}, gg[2] = {}, ww[2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    for (int a = 0; a < 2; ++a) {
      const Lanes x = Load(w + i + a * kLanes), y = Load(g + i + a * kLanes);
      wg[a] += x * y;
      if constexpr (kAll) gg[a] += y * y;
      if constexpr (kAll) ww[a] += x * x;
    }
  }
  sums.weight_grad += Total(wg[0] + wg[1]);
  sums.grad_squares += Total(gg[0] + gg[1]);
  sums.weight_squares += Total(ww[0] + ww[1]);
  for (; i < n; ++i) {
    const double x = static_cast<double>(w[i]), y = static_cast<double>(g[i]);
    sums.weight_grad += x * y;
    sums.grad_squares += y * y;
    sums.weight_squares += x * x;
  }
}

template <typename C>
Sums BlockDots(const DotChunk& chunk, int64_t begin, int64_t n) {
  const C* weight = static_cast<const C*>(chunk.weight);
  const bool staged = chunk.grad_dtype != DTypeOf<C>();
  alignas(64) C stage[kStageBlock];
  Sums sums;
  const int64_t step = staged ? kStageBlock : n;
  for (int64_t b = begin; b < begin + n; b += step) {
    const int64_t count = std::min(step, begin + n - b);
    if (staged) LoadBlock(chunk.grad, chunk.grad_dtype, b, count, stage);
    const C* grad = staged ? stage : static_cast<const C*>(chunk.grad) + b;
    chunk.all ? AddDots<true>(weight + b, grad, count, sums)
              : AddDots<false>(weight + b, grad, count, sums);
  }
  return sums;
}

template <typename C, typename S>
void RunDots(const DeviceContext& context, const DotArgs& args) {
  constexpr int64_t kBlock = 1 << 15;
  struct Block {
    size_t chunk;
    int64_t begin;
    Sums sums;
  };
  std::vector<Block> blocks;
  int64_t total = 0;
  for (size_t c = 0; c < args.chunks.size(); ++c) {
    const int64_t n = args.chunks[c].n;
    total += n;
    for (int64_t begin = 0; begin < n; begin += kBlock) blocks.push_back({c, begin, {}});
  }
  const auto num_blocks = static_cast<int64_t>(blocks.size());
  ParallelFor(
      context, num_blocks, total < 2 * kBlock ? num_blocks : 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          Block& block = blocks[static_cast<size_t>(i)];
          const DotChunk& chunk = args.chunks[block.chunk];
          block.sums = BlockDots<C>(chunk, block.begin, std::min(kBlock, chunk.n - block.begin));
        }
      });
  std::vector<Sums> sums(args.chunks.size());
  for (const Block& block : blocks) {
    Sums& sum = sums[block.chunk];
    sum.weight_grad += block.sums.weight_grad;
    sum.grad_squares += block.sums.grad_squares;
    sum.weight_squares += block.sums.weight_squares;
  }
  const double scale = args.grad_scale;
  for (size_t c = 0; c < sums.size(); ++c) {
    S* to = static_cast<S*>(args.chunks[c].sums);
    to[0] = static_cast<S>(scale * sums[c].weight_grad);
    to[1] = static_cast<S>(scale * scale * sums[c].grad_squares);
    to[2] = static_cast<S>(sums[c].weight_squares);
  }
}

}  // namespace

void scaled_adam(const DeviceContext& context, const ScaledAdamArgs& args) {
  args.dtype == DType::kF64 ? Run<double>(context, args) : Run<float>(context, args);
}

void dots(const DeviceContext& context, const DotArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype,
                [&]<typename C, typename S>() { RunDots<C, S>(context, args); });
}

}  // namespace apogee::optim::cpu
