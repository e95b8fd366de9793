// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/dispatch_stats.h"
#include "apogee/optim/cuda/device/gate.cuh"
#include "apogee/optim/cuda/device/reduce.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <typename C>
struct DotTerms {
  __device__ void operator()(const DotChunk& chunk, int64_t begin, int64_t end,
                             double (&sums)[3]) const {
    const C* weight = static_cast<const C*>(chunk.weight);
    ForEachPack<kReducePack>(begin, end, AreAligned(weight, chunk.grad), [&](const auto& at) {
      const Pack<C, kReducePack> w = at.template Load<C>(weight);
      const Pack<C, kReducePack> grad = LoadAs<C>(at, chunk.grad, chunk.grad_dtype);
#pragma unroll
      for (int k = 0; k < kReducePack; ++k) {
        const double x = w.at[k], g = grad.at[k];
        sums[0] += x * g;
        if (chunk.all) {
          sums[1] += g * g;
          sums[2] += x * x;
        }
      }
    });
  }
};

template <typename S>
struct StoreDots {
  DeviceFactor grad_scale;

  __device__ void operator()(const DotChunk& chunk, int64_t, const double (&totals)[3]) const {
    const double scale = grad_scale.value();
    S* sums = static_cast<S*>(chunk.sums);
    sums[0] = static_cast<S>(scale * totals[0]);
    sums[1] = static_cast<S>(scale * scale * totals[1]);
    sums[2] = static_cast<S>(totals[2]);
  }
};

}  // namespace

void dots(const DeviceContext& context, const DotArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    ReduceChunks<3, Sum>(context, args.chunks, DotTerms<C>{},
                         StoreDots<S>{DeviceFactor(args.grad_scale)});
  });
}

}  // namespace apogee::optim::cuda
