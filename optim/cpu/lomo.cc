// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {
namespace {

template <typename C>
struct Coefficients {
  C inv_scale, limit, clip_coef, lr, decay;
};

template <typename C>
void Loop(int64_t n, Coefficients<C> c, C* __restrict w, const C* __restrict grad) {
  for (int64_t i = 0; i < n; ++i) {
    C g = c.inv_scale * grad[i];
    g = g > c.limit ? c.limit : g < -c.limit ? -c.limit : g;  // NaN stays
    w[i] = w[i] - c.decay * w[i] - c.lr * (c.clip_coef * g);
  }
}

template <typename C>
void Run(const DeviceContext& context, const LomoArgs& args) {
  const Coefficients<C> c{static_cast<C>(args.inv_scale), static_cast<C>(args.clip_value),
                          static_cast<C>(args.clip_coef), static_cast<C>(args.lr),
                          static_cast<C>(args.decay)};
  ForEachUpdate<C>(
      context, args.chunks,
      [&](const UpdateChunk&, int64_t, int64_t n, C* w, const C* grad) { Loop(n, c, w, grad); });
}

}  // namespace

void lomo(const DeviceContext& context, const LomoArgs& args) {
  args.dtype == DType::kF64 ? Run<double>(context, args) : Run<float>(context, args);
}

}  // namespace apogee::optim::cpu
