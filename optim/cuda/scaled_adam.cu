// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/update.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <typename C>
struct ScaledAdamStep {
  DeviceScale<C> grad_scale;
  C beta1, beta2, one_minus_beta2, eps;
  bool clamp_before;

  struct Size {
    C step_size, growth;
  };

  __device__ bool Open() { return grad_scale.Open(); }
  __device__ bool Aligned(const ScaledAdamChunk& chunk) const {
    return AreAligned(chunk.delta, chunk.exp_avg_sq);
  }
  __device__ Size Prepare(const ScaledAdamChunk& chunk) const {
    return {static_cast<C>(chunk.step[0]), static_cast<C>(chunk.step[1])};
  }

  // With an infinite limit, clamping changes nothing.
  template <typename At>
  __device__ UpdatePack<C> operator()(const ScaledAdamChunk& chunk, const At& at,
                                      const Size& size) const {
    UpdatePack<C> w = LoadWeight<C>(chunk, at);
    UpdatePack<C> delta = LoadState<C>(chunk.delta, at);
    UpdatePack<C> v = LoadState<C>(chunk.exp_avg_sq, at);
    const UpdatePack<C> grad = LoadGrad<C>(chunk, at);
    const C v_scale = static_cast<C>(chunk.v_scale), limit = static_cast<C>(chunk.limit);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      const C g = grad_scale.value == 0 ? C{0} : grad_scale * grad.at[k];
      v.at[k] = beta2 * v.at[k] + one_minus_beta2 * g * g;
      const C step = size.step_size * (g / (sqrt(v.at[k] * v_scale) + eps));
      delta.at[k] = beta1 * delta.at[k] + step + size.growth * w.at[k];
      w.at[k] = (clamp_before ? ClampTo(w.at[k], limit) : w.at[k]) + delta.at[k];
      if (!clamp_before) w.at[k] = ClampTo(w.at[k], limit);
    }
    StoreState(chunk.delta, at, delta);
    StoreState(chunk.exp_avg_sq, at, v);
    return w;
  }
};

template <typename C>
void RunScaledAdam(const DeviceContext& context, const ScaledAdamArgs& args) {
  UpdateChunks<C>(context, args.chunks,
                  ScaledAdamStep<C>{DeviceScale<C>(args.grad_scale), static_cast<C>(args.beta1),
                                    static_cast<C>(args.beta2), static_cast<C>(1 - args.beta2),
                                    static_cast<C>(args.eps), args.clamp_before});
}

}  // namespace

void scaled_adam(const DeviceContext& context, const ScaledAdamArgs& args) {
  args.dtype == DType::kF64 ? RunScaledAdam<double>(context, args)
                            : RunScaledAdam<float>(context, args);
}

}  // namespace apogee::optim::cuda
