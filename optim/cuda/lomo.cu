// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/update.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <typename C>
struct LomoStep {
  C inv_scale, limit, clip_coef, lr, decay;
  const StepGate* gate;

  __device__ bool Open() {
    if (gate == nullptr) return true;
    clip_coef = static_cast<C>(gate->clip_factor);
    return !gate->skip;
  }
  __device__ bool Aligned(const UpdateChunk&) const { return true; }

  template <typename At>
  __device__ UpdatePack<C> operator()(const UpdateChunk& chunk, const At& at) const {
    UpdatePack<C> w = LoadWeight<C>(chunk, at);
    const UpdatePack<C> grad = LoadGrad<C>(chunk, at);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      const C g = ClampTo(inv_scale * grad.at[k], limit);
      w.at[k] = w.at[k] - decay * w.at[k] - lr * (clip_coef * g);
    }
    return w;
  }
};

template <typename C>
void RunLomo(const DeviceContext& context, const LomoArgs& args) {
  UpdateChunks<C>(context, args.chunks,
                  LomoStep<C>{static_cast<C>(args.inv_scale), static_cast<C>(args.clip_value),
                              static_cast<C>(args.clip_coef), static_cast<C>(args.lr),
                              static_cast<C>(args.decay), args.gate});
}

}  // namespace

void lomo(const DeviceContext& context, const LomoArgs& args) {
  args.dtype == DType::kF64 ? RunLomo<double>(context, args) : RunLomo<float>(context, args);
}

}  // namespace apogee::optim::cuda
