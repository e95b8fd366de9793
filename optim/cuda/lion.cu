// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/update.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <typename C>
struct LionStep {
  DeviceScale<C> grad_scale;
  C lr, decay, beta1, one_minus_beta1, beta2, one_minus_beta2;

  __device__ bool Open() { return grad_scale.Open(); }
  __device__ bool Aligned(const LionChunk& chunk) const { return AreAligned(chunk.exp_avg); }

  template <typename At>
  __device__ UpdatePack<C> operator()(const LionChunk& chunk, const At& at) const {
    UpdatePack<C> w = LoadWeight<C>(chunk, at);
    UpdatePack<C> m = LoadState<C>(chunk.exp_avg, at);
    const UpdatePack<C> grad = LoadGrad<C>(chunk, at);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      const C g = grad_scale * grad.at[k];
      const C direction = beta1 * m.at[k] + one_minus_beta1 * g;
      m.at[k] = beta2 * m.at[k] + one_minus_beta2 * g;
      const C sign = direction > 0 ? C{1} : direction < 0 ? C{-1} : direction;  // NaN stays
      w.at[k] = w.at[k] - decay * w.at[k] - lr * sign;
    }
    StoreState(chunk.exp_avg, at, m);
    return w;
  }
};

template <typename C>
void RunLion(const DeviceContext& context, const LionArgs& args) {
  UpdateChunks<C>(context, args.chunks,
                  LionStep<C>{DeviceScale<C>(args.grad_scale), static_cast<C>(args.lr),
                              static_cast<C>(args.decay), static_cast<C>(args.beta1),
                              static_cast<C>(1 - args.beta1), static_cast<C>(args.beta2),
                              static_cast<C>(1 - args.beta2)});
}

}  // namespace

void lion(const DeviceContext& context, const LionArgs& args) {
  args.dtype == DType::kF64 ? RunLion<double>(context, args) : RunLion<float>(context, args);
}

}  // namespace apogee::optim::cuda
