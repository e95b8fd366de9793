// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {

void grad_scale(const DeviceContext& context, const ScaleArgs& args) {
  ForEachRange(context, args.chunks, [&](const ScaleChunk& chunk, int64_t begin, int64_t n) {
    DispatchFloat(chunk.grad_dtype, "grad_scale", [&]<typename T>() {
      using C = ComputeType<T>;
      const C factor = static_cast<C>(args.factor);
      const C limit = static_cast<C>(args.limit);
      T* grad = static_cast<T*>(chunk.grad) + begin;
      for (int64_t i = 0; i < n; ++i) {
        const C g = factor * static_cast<C>(grad[i]);
        grad[i] = static_cast<T>(g > limit ? limit : g < -limit ? -limit : g);  // NaN stays
      }
    });
  });
}

}  // namespace apogee::optim::cpu
