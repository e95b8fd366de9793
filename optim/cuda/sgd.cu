// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/update.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <typename C>
struct SgdStep {
  DeviceScale<C> grad_scale;
  C lr, l2, momentum;
  bool nesterov;

  __device__ bool Open() { return grad_scale.Open(); }
  __device__ bool Aligned(const SgdChunk& chunk) const { return AreAligned(chunk.momentum_buffer); }

  template <typename At>
  __device__ UpdatePack<C> operator()(const SgdChunk& chunk, const At& at) const {
    UpdatePack<C> w = LoadWeight<C>(chunk, at);
    if (chunk.momentum_buffer == nullptr) {
      const UpdatePack<C> grad = LoadGrad<C>(chunk, at);
#pragma unroll
      for (int k = 0; k < kUpdatePack; ++k) {
        w.at[k] -= lr * (grad_scale * grad.at[k] + l2 * w.at[k]);
      }
      return w;
    }
    UpdatePack<C> buf = LoadState<C>(chunk.momentum_buffer, at);
    const UpdatePack<C> grad = LoadGrad<C>(chunk, at);
    const C buf_scale = static_cast<C>(chunk.buf_scale);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      const C g = grad_scale * grad.at[k] + l2 * w.at[k];
      const C b = momentum * buf.at[k] + buf_scale * g;
      buf.at[k] = b;
      w.at[k] -= lr * (nesterov ? g + momentum * b : b);
    }
    StoreState(chunk.momentum_buffer, at, buf);
    return w;
  }
};

template <typename C>
void RunSgd(const DeviceContext& context, const SgdArgs& args) {
  UpdateChunks<C>(
      context, args.chunks,
      SgdStep<C>{DeviceScale<C>(args.grad_scale), static_cast<C>(args.lr), static_cast<C>(args.l2),
                 static_cast<C>(args.momentum), args.nesterov});
}

}  // namespace

void sgd(const DeviceContext& context, const SgdArgs& args) {
  args.dtype == DType::kF64 ? RunSgd<double>(context, args) : RunSgd<float>(context, args);
}

}  // namespace apogee::optim::cuda
