// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/trust_sums.h"

namespace apogee::optim::cpu {
namespace {

template <typename C>
struct Coefficients {
  C grad_scale, beta1, grad_weight, beta2, one_minus_beta2, eps, decay, mean_scale, root_scale;
};
template <typename C>
Coefficients<C> MakeCoefficients(const LambArgs& args, const LambChunk& chunk) {
  return {static_cast<C>(args.grad_scale),  static_cast<C>(args.beta1),
          static_cast<C>(args.grad_weight), static_cast<C>(args.beta2),
          static_cast<C>(1 - args.beta2),   static_cast<C>(args.eps),
          static_cast<C>(args.decay),       static_cast<C>(chunk.mean_scale),
          static_cast<C>(chunk.root_scale)};
}

// Calls body(i, kind, w, m, v, u) with the weight, the new moments and the direction of each
// element.
template <typename C, typename Body>
[[gnu::always_inline]] inline void ForDirections(int64_t n, const Coefficients<C> c,
                                                 const C* weight, const C* grad, const C* exp_avg,
                                                 const C* exp_avg_sq, const Body& body) {
  ForLanes<C>(
      n, [&](int64_t i, auto kind) __attribute__((always_inline)) {
        using V = decltype(kind);
        const V w = Load<V>(weight + i);
        const V g = c.grad_scale * Load<V>(grad + i);
        const V m = c.beta1 * Load<V>(exp_avg + i) + c.grad_weight * g;
        const V v = c.beta2 * Load<V>(exp_avg_sq + i) + c.one_minus_beta2 * (g * g);
        const V u = c.mean_scale * m / (c.root_scale * Root(v) + c.eps) + c.decay * w;
        body(i, kind, w, m, v, u);
      });
}

template <typename C>
TrustSums SumsOf(int64_t n, const Coefficients<C> c, const C* weight, const C* grad,
                 const C* exp_avg, const C* exp_avg_sq) {
  LaneSum<C> weights, updates;
  ForDirections(
      n, c, weight, grad, exp_avg,
      exp_avg_sq, [&](int64_t, auto, auto w, auto, auto, auto u) __attribute__((always_inline)) {
        weights.Add(w * w);
        updates.Add(u * u);
      });
  return {static_cast<double>(weights.Total()), static_cast<double>(updates.Total())};
}

template <typename C>
void UpdateRange(int64_t n, const Coefficients<C> c, C step, C* weight, const C* grad, C* exp_avg,
                 C* exp_avg_sq) {
  ForDirections(
      n, c, weight, grad, exp_avg, exp_avg_sq,
      [&](int64_t i, auto, auto w, auto m, auto v, auto u) __attribute__((always_inline)) {
        Store(exp_avg + i, m);
        Store(exp_avg_sq + i, v);
        Store(weight + i, decltype(w)(w - step * u));
      });
}

template <typename S>
double TrustRatio(const LambArgs& args, const LambChunk& chunk) {
  if (!chunk.trusted) return 1;
  const TrustSums norms = TrustNorms<S>(chunk);
  if (norms.weight == 0 || norms.update == 0) return 1;
  const double ratio = norms.weight / norms.update;
  return ratio < args.min_ratio ? args.min_ratio : ratio > args.max_ratio ? args.max_ratio : ratio;
}

}  // namespace

void norm_clip(const DeviceContext&, const NormClipArgs& args) {
  const double scale = args.grad_scale;
  double sum = 0;
  DispatchStats(DType::kF32, args.stat_dtype, [&]<typename, typename S>() {
    const S* squares = static_cast<const S*>(args.squares);
    for (int64_t i = 0; i < args.count; ++i) sum += static_cast<double>(squares[i]);
  });
  const double excess = std::sqrt(sum) * scale / args.limit;
  *args.gate = {};
  args.gate->grad_scale = excess > 1 ? scale / excess : scale;
}

void lamb_sums(const DeviceContext& context, const LambArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    AddTrustSums<C, S>(
        context, args.chunks,
        [&](const LambChunk& chunk, int64_t begin, int64_t n, const C* w, const C* grad) {
          return SumsOf(n, MakeCoefficients<C>(args, chunk), w, grad,
                        static_cast<const C*>(chunk.exp_avg) + begin,
                        static_cast<const C*>(chunk.exp_avg_sq) + begin);
        });
  });
}

void lamb(const DeviceContext& context, const LambArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    ForEachUpdate<C>(context, args.chunks,
                     [&](const LambChunk& chunk, int64_t begin, int64_t n, C* w, const C* grad) {
                       UpdateRange(n, MakeCoefficients<C>(args, chunk),
                                   static_cast<C>(chunk.step_size * TrustRatio<S>(args, chunk)), w,
                                   grad, static_cast<C*>(chunk.exp_avg) + begin,
                                   static_cast<C*>(chunk.exp_avg_sq) + begin);
                     });
  });
}

}  // namespace apogee::optim::cpu
