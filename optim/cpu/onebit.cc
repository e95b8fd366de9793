// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {
namespace {

template <typename C>
void BlendRange(int64_t n, C beta, C weight, C* to, const C* from, const C* grad) {
  if (from == nullptr) {
    for (int64_t i = 0; i < n; ++i) to[i] = weight * grad[i];
  } else {
    // The same bits as the moments of Adam's kernel.
    for (int64_t i = 0; i < n; ++i) to[i] = beta * from[i] + weight * grad[i];
  }
}

template <typename C>
void Blend(const DeviceContext& context, const BlendArgs& args) {
  ForEachRange(context, args.chunks, [&](const BlendChunk& chunk, int64_t begin, int64_t count) {
    alignas(64) C stage[kStageBlock];
    const C* from = static_cast<const C*>(chunk.from);
    const bool staged = chunk.grad_dtype != DTypeOf<C>();
    for (int64_t b = begin; b < begin + count; b += kStageBlock) {
      const int64_t n = std::min(kStageBlock, begin + count - b);
      if (staged) LoadBlock(chunk.grad, chunk.grad_dtype, b, n, stage);
      BlendRange(n, static_cast<C>(args.beta), static_cast<C>(chunk.weight),
                 static_cast<C*>(chunk.to) + b, from == nullptr ? nullptr : from + b,
                 staged ? stage : static_cast<const C*>(chunk.grad) + b);
    }
  });
}

template <typename C>
struct LambCoefficients {
  explicit LambCoefficients(const OneBitLambArgs& args)
      : beta1(static_cast<C>(args.beta1)),
        beta2(static_cast<C>(args.beta2)),
        eps(static_cast<C>(args.eps)),
        decay(static_cast<C>(args.decay)),
        recover(static_cast<C>(1 / (1 - args.beta1))),
        one_minus_beta2(static_cast<C>(1 - args.beta2)) {}
  // The fresh second moment, updated with the gradient that the two momenta imply.
  C Fresh(C m, C previous, C fresh) const {
    const C g = (m - beta1 * previous) * recover;
    return beta2 * fresh + one_minus_beta2 * g * g;
  }
  C beta1, beta2, eps, decay, recover, one_minus_beta2;
};

template <typename C, typename S>
void LambSums(const OneBitLambArgs& args) {
  const LambCoefficients<C> c(args);
  for (const OneBitLambChunk& chunk : args.chunks) {
    const C* w = static_cast<const C*>(chunk.weight);
    const C* m = static_cast<const C*>(chunk.grad);
    const C* previous = static_cast<const C*>(chunk.exp_avg);
    const C* v = static_cast<const C*>(chunk.exp_avg_sq);
    const C* fresh = static_cast<const C*>(chunk.fresh);
    double directions = 0, updates = 0;
    C largest = 0;
    for (int64_t i = 0; i < chunk.n; ++i) {
      const C root = std::sqrt(v[i]) + c.eps;
      const C direction = m[i] / root;
      const C update = direction + c.decay * w[i];
      directions += static_cast<double>(direction) * direction;
      updates += static_cast<double>(update) * update;
      if (v[i] == 0) continue;
      const C ratio = root / (std::sqrt(c.Fresh(m[i], previous[i], fresh[i])) + c.eps);
      largest = ratio > largest ? ratio : largest;
    }
    S* sums = static_cast<S*>(chunk.sums);
    sums[0] += static_cast<S>(directions);
    sums[1] += static_cast<S>(updates);
    *static_cast<S*>(chunk.max) = static_cast<S>(largest);
  }
}

template <typename C>
void Lamb(const DeviceContext& context, const OneBitLambArgs& args) {
  const LambCoefficients<C> c(args);
  ForEachUpdate<C>(context, args.chunks,
                   [&](const OneBitLambChunk& chunk, int64_t begin, int64_t n, C* __restrict w,
                       const C* __restrict m) {
                     C* __restrict previous = static_cast<C*>(chunk.exp_avg) + begin;
                     const C* __restrict v = static_cast<const C*>(chunk.exp_avg_sq) + begin;
                     C* __restrict fresh = static_cast<C*>(chunk.fresh) + begin;
                     const C step = static_cast<C>(chunk.step_size);
                     for (int64_t i = 0; i < n; ++i) {
                       fresh[i] = c.Fresh(m[i], previous[i], fresh[i]);
                       previous[i] = m[i];
                       w[i] -= step * (m[i] / (std::sqrt(v[i]) + c.eps) + c.decay * w[i]);
                     }
                   });
}

}  // namespace

void blend(const DeviceContext& context, const BlendArgs& args) {
  args.dtype == DType::kF64 ? Blend<double>(context, args) : Blend<float>(context, args);
}
void onebit_lamb_sums(const DeviceContext&, const OneBitLambArgs& args) {
  const bool stats64 = args.stat_dtype == DType::kF64;
  if (args.dtype == DType::kF64) return LambSums<double, double>(args);
  stats64 ? LambSums<float, double>(args) : LambSums<float, float>(args);
}
void onebit_lamb(const DeviceContext& context, const OneBitLambArgs& args) {
  args.dtype == DType::kF64 ? Lamb<double>(context, args) : Lamb<float>(context, args);
}

}  // namespace apogee::optim::cpu
