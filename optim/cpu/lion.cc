// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {
namespace {

template <typename C>
struct Coefficients {
  C grad_scale, lr, decay, beta1, one_minus_beta1, beta2, one_minus_beta2;
};

template <typename C>
void LionLoop(int64_t n, const Coefficients<C> c, C* __restrict weight, const C* __restrict grad,
              C* __restrict exp_avg) {
  for (int64_t i = 0; i < n; ++i) {
    const C g = c.grad_scale * grad[i];
    const C m = exp_avg[i];
    const C direction = c.beta1 * m + c.one_minus_beta1 * g;
    exp_avg[i] = c.beta2 * m + c.one_minus_beta2 * g;
    const C sign = direction > 0 ? C{1} : direction < 0 ? C{-1} : direction;  // NaN stays
    const C w = weight[i];
    weight[i] = w - c.decay * w - c.lr * sign;
  }
}

template <typename C>
void Run(const DeviceContext& context, const LionArgs& args) {
  const Coefficients<C> c{static_cast<C>(args.grad_scale), static_cast<C>(args.lr),
                          static_cast<C>(args.decay),      static_cast<C>(args.beta1),
                          static_cast<C>(1 - args.beta1),  static_cast<C>(args.beta2),
                          static_cast<C>(1 - args.beta2)};
  ForEachUpdate<C>(context, args.chunks,
                   [&](const LionChunk& chunk, int64_t begin, int64_t n, C* w, const C* grad) {
                     LionLoop<C>(n, c, w, grad, static_cast<C*>(chunk.exp_avg) + begin);
                   });
}

}  // namespace

void lion(const DeviceContext& context, const LionArgs& args) {
  args.dtype == DType::kF64 ? Run<double>(context, args) : Run<float>(context, args);
}

}  // namespace apogee::optim::cpu
