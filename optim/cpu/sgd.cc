// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {
namespace {

template <typename C>
struct Coefficients {
  C grad_scale, lr, l2, momentum, buf_scale;
};

template <typename C>
void PlainLoop(int64_t n, Coefficients<C> c, C* __restrict w, const C* __restrict grad) {
  for (int64_t i = 0; i < n; ++i) w[i] -= c.lr * (c.grad_scale * grad[i] + c.l2 * w[i]);
}

template <typename C, bool kNesterov>
void MomentumLoop(int64_t n, Coefficients<C> c, C* __restrict w, const C* __restrict grad,
                  C* __restrict buf) {
  for (int64_t i = 0; i < n; ++i) {
    const C g = c.grad_scale * grad[i] + c.l2 * w[i];
    const C b = c.momentum * buf[i] + c.buf_scale * g;
    buf[i] = b;
    w[i] -= c.lr * (kNesterov ? g + c.momentum * b : b);
  }
}

template <typename C>
void Run(const DeviceContext& context, const SgdArgs& args) {
  ForEachUpdate<C>(context, args.chunks,
                   [&](const SgdChunk& chunk, int64_t begin, int64_t n, C* w, const C* grad) {
                     const Coefficients<C> c{static_cast<C>(args.grad_scale),
                                             static_cast<C>(args.lr), static_cast<C>(args.l2),
                                             static_cast<C>(args.momentum),
                                             static_cast<C>(chunk.buf_scale)};
                     C* buf = static_cast<C*>(chunk.momentum_buffer);
                     if (buf == nullptr) {
                       PlainLoop(n, c, w, grad);
                     } else if (args.nesterov) {
                       MomentumLoop<C, true>(n, c, w, grad, buf + begin);
                     } else {
                       MomentumLoop<C, false>(n, c, w, grad, buf + begin);
                     }
                   });
}

}  // namespace

void sgd(const DeviceContext& context, const SgdArgs& args) {
  args.dtype == DType::kF64 ? Run<double>(context, args) : Run<float>(context, args);
}

}  // namespace apogee::optim::cpu
