// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {
namespace {

template <typename C>
struct Coefficients {
  C grad_scale, decay, beta1, beta2, one_minus_beta1, one_minus_beta2, eps, step_size, root_scale;
};

// One division and one root per element. Options that do not apply cost nothing.
template <typename C, DecayKind kDecay, bool kAmsgrad>
void AdamLoop(int64_t n, const Coefficients<C> c, C* __restrict weight, const C* __restrict grad,
              C* __restrict exp_avg, C* __restrict exp_avg_sq, C* __restrict max_exp_avg_sq) {
  for (int64_t i = 0; i < n; ++i) {
    C w = weight[i];
    C g = c.grad_scale * grad[i];
    if constexpr (kDecay == DecayKind::kL2) g += c.decay * w;
    if constexpr (kDecay == DecayKind::kBefore) w -= c.decay * w;
    const C m = c.beta1 * exp_avg[i] + c.one_minus_beta1 * g;
    C v = c.beta2 * exp_avg_sq[i] + c.one_minus_beta2 * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    if constexpr (kAmsgrad) {
      const C largest = max_exp_avg_sq[i];
      v = v > largest || v != v ? v : largest;  // NaN wins, as it should
      max_exp_avg_sq[i] = v;
    }
    w -= c.step_size * (m / (c.root_scale * std::sqrt(v) + c.eps));
    if constexpr (kDecay == DecayKind::kAfter) w -= c.decay * w;
    weight[i] = w;
  }
}

template <typename C, DecayKind kDecay, bool kAmsgrad>
void RunAs(const DeviceContext& context, const AdamArgs& args) {
  ForEachUpdate<C>(
      context, args.chunks,
      [&](const AdamChunk& chunk, int64_t begin, int64_t n, C* w, const C* grad) {
        const Coefficients<C> c{static_cast<C>(args.grad_scale), static_cast<C>(args.decay),
                                static_cast<C>(args.beta1),      static_cast<C>(args.beta2),
                                static_cast<C>(1 - args.beta1),  static_cast<C>(1 - args.beta2),
                                static_cast<C>(args.eps),        static_cast<C>(chunk.step_size),
                                static_cast<C>(chunk.root_scale)};
        C* largest = kAmsgrad ? static_cast<C*>(chunk.max_exp_avg_sq) + begin : nullptr;
        AdamLoop<C, kDecay, kAmsgrad>(n, c, w, grad, static_cast<C*>(chunk.exp_avg) + begin,
                                      static_cast<C*>(chunk.exp_avg_sq) + begin, largest);
      });
}

template <typename C, bool kAmsgrad>
void RunDecay(const DeviceContext& context, const AdamArgs& args) {
  switch (args.decay_kind) {
    case DecayKind::kNone:
      return RunAs<C, DecayKind::kNone, kAmsgrad>(context, args);
    case DecayKind::kL2:
      return RunAs<C, DecayKind::kL2, kAmsgrad>(context, args);
    case DecayKind::kBefore:
      return RunAs<C, DecayKind::kBefore, kAmsgrad>(context, args);
    case DecayKind::kAfter:
      return RunAs<C, DecayKind::kAfter, kAmsgrad>(context, args);
  }
}

template <typename C>
void Run(const DeviceContext& context, const AdamArgs& args) {
  args.amsgrad ? RunDecay<C, true>(context, args) : RunDecay<C, false>(context, args);
}

}  // namespace

void adam(const DeviceContext& context, const AdamArgs& args) {
  args.dtype == DType::kF64 ? Run<double>(context, args) : Run<float>(context, args);
}

}  // namespace apogee::optim::cpu
