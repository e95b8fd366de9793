// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/trust_sums.h"

namespace apogee::optim::cpu {
namespace {

template <typename C>
TrustSums SumsOf(int64_t n, C grad_scale, const C* __restrict weight, const C* __restrict grad) {
  LaneSum<C> weights, grads;
  ForLanes<C>(
      n, [&](int64_t i, auto kind) __attribute__((always_inline)) {
        using V = decltype(kind);
        const V w = Load<V>(weight + i);
        const V g = grad_scale * Load<V>(grad + i);
        weights.Add(w * w);
        grads.Add(g * g);
      });
  return {static_cast<double>(weights.Total()), static_cast<double>(grads.Total())};
}

template <typename S>
double TrustRatio(const LarsArgs& args, const LarsChunk& chunk) {
  if (!chunk.trusted) return 1;
  const TrustSums norms = TrustNorms<S>(chunk);
  if (norms.weight == 0 || norms.update == 0) return 1;
  return args.coefficient * norms.weight / (norms.update + args.decay * norms.weight + args.eps);
}

template <typename C>
struct Coefficients {
  C grad_scale, decay, ratio, momentum, lr;
};

template <typename C, bool kMomentum, bool kNesterov>
void LarsLoop(int64_t n, const Coefficients<C> c, C* __restrict weight, const C* __restrict grad,
              C* __restrict buf) {
  for (int64_t i = 0; i < n; ++i) {
    const C w = weight[i];
    C d = c.ratio * (c.grad_scale * grad[i] + c.decay * w);
    if constexpr (kMomentum) {
      const C b = c.momentum * buf[i] + d;
      buf[i] = b;
      d = kNesterov ? d + c.momentum * b : b;
    }
    weight[i] = w - c.lr * d;
  }
}

}  // namespace

void lars_sums(const DeviceContext& context, const LarsArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    AddTrustSums<C, S>(context, args.chunks,
                       [&](const LarsChunk&, int64_t, int64_t n, const C* w, const C* grad) {
                         return SumsOf(n, static_cast<C>(args.grad_scale), w, grad);
                       });
  });
}

void lars(const DeviceContext& context, const LarsArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    ForEachUpdate<C>(context, args.chunks,
                     [&](const LarsChunk& chunk, int64_t begin, int64_t n, C* w, const C* grad) {
                       const Coefficients<C> c{
                           static_cast<C>(args.grad_scale), static_cast<C>(args.decay),
                           static_cast<C>(TrustRatio<S>(args, chunk)),
                           static_cast<C>(args.momentum), static_cast<C>(args.lr)};
                       C* buf = static_cast<C*>(chunk.momentum_buffer);
                       if (buf == nullptr) {
                         LarsLoop<C, false, false>(n, c, w, grad, nullptr);
                       } else if (args.nesterov) {
                         LarsLoop<C, true, true>(n, c, w, grad, buf + begin);
                       } else {
                         LarsLoop<C, true, false>(n, c, w, grad, buf + begin);
                       }
                     });
  });
}

}  // namespace apogee::optim::cpu
