// SPDX-License-Identifier: Apache-2.0

// 1-bit Adam and 0/1 Adam: the kernels between two exchanges of messages.
#include "apogee/optim/cuda/device/update.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <typename C>
struct BlendBody {
  C beta;

  __device__ void operator()(const BlendChunk& chunk, int64_t tile) const {
    const int64_t begin = tile * kUpdateTile;
    const int64_t end = begin + kUpdateTile < chunk.n ? begin + kUpdateTile : chunk.n;
    const C weight = static_cast<C>(chunk.weight);
    const bool aligned = AreAligned(chunk.to, chunk.from, chunk.grad);
    ForEachPack<kUpdatePack>(begin, end, aligned, [&](const auto& at) {
      UpdatePack<C> x{};
      if (chunk.from != nullptr) x = LoadState<C>(chunk.from, at);
      const UpdatePack<C> grad = LoadAs<C>(at, chunk.grad, chunk.grad_dtype);
#pragma unroll
      for (int k = 0; k < kUpdatePack; ++k) {
        // The same bits as the moments of Adam's kernel.
        x.at[k] =
            chunk.from == nullptr ? weight * grad.at[k] : beta * x.at[k] + weight * grad.at[k];
      }
      StoreState(chunk.to, at, x);
    });
  }
};

template <typename C>
void Blend(const DeviceContext& context, const BlendArgs& args) {
  ForEachTile(
      context, args.chunks, [](const BlendChunk& chunk) { return CeilDiv(chunk.n, kUpdateTile); },
      BlendBody<C>{static_cast<C>(args.beta)});
}

template <typename C>
struct FrozenAdamStep {
  C beta, weight, eps, decay;

  __device__ bool Aligned(const FrozenAdamChunk& chunk) const {
    return AreAligned(chunk.exp_avg, chunk.exp_avg_sq);
  }
  template <typename At>
  __device__ UpdatePack<C> operator()(const FrozenAdamChunk& chunk, const At& at) const {
    UpdatePack<C> w = LoadWeight<C>(chunk, at);
    UpdatePack<C> m = LoadState<C>(chunk.exp_avg, at);
    const UpdatePack<C> v = LoadState<C>(chunk.exp_avg_sq, at);
    const UpdatePack<C> grad = LoadGrad<C>(chunk, at);
    const C step = static_cast<C>(chunk.step_size);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      m.at[k] = beta * m.at[k] + weight * grad.at[k];
      w.at[k] -= step * (m.at[k] / (sqrt(v.at[k]) + eps) + decay * w.at[k]);
    }
    StoreState(chunk.exp_avg, at, m);
    return w;
  }
};

template <typename C>
void FrozenAdam(const DeviceContext& context, const FrozenAdamArgs& args) {
  UpdateChunks<C>(context, args.chunks,
                  FrozenAdamStep<C>{static_cast<C>(args.beta), static_cast<C>(args.weight),
                                    static_cast<C>(args.eps), static_cast<C>(args.decay)});
}

template <typename C>
struct OwnStep {
  C lr, keep, eps;

  __device__ bool Aligned(const LocalStepChunk& chunk) const {
    return AreAligned(chunk.exp_avg, chunk.exp_avg_sq, chunk.anchor, chunk.drift);
  }
  template <typename At>
  __device__ UpdatePack<C> operator()(const LocalStepChunk& chunk, const At& at) const {
    const UpdatePack<C> m = LoadState<C>(chunk.exp_avg, at);
    const UpdatePack<C> v = LoadState<C>(chunk.exp_avg_sq, at);
    UpdatePack<C> anchor = LoadState<C>(chunk.anchor, at);
    UpdatePack<C> drift = LoadState<C>(chunk.drift, at);
    UpdatePack<C> w;
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      anchor.at[k] = keep * anchor.at[k];
      drift.at[k] = keep * drift.at[k] + lr * m.at[k];
      w.at[k] = anchor.at[k] - drift.at[k] / (sqrt(v.at[k]) + eps);
    }
    StoreState(chunk.anchor, at, anchor);
    StoreState(chunk.drift, at, drift);
    return w;
  }
};

template <typename C>
void LocalStep(const DeviceContext& context, const LocalStepArgs& args) {
  UpdateChunks<C>(
      context, args.chunks,
      OwnStep<C>{static_cast<C>(args.lr), static_cast<C>(args.keep), static_cast<C>(args.eps)});
}

}  // namespace

void blend(const DeviceContext& context, const BlendArgs& args) {
  args.dtype == DType::kF64 ? Blend<double>(context, args) : Blend<float>(context, args);
}
void frozen_adam(const DeviceContext& context, const FrozenAdamArgs& args) {
  args.dtype == DType::kF64 ? FrozenAdam<double>(context, args) : FrozenAdam<float>(context, args);
}
void local_step(const DeviceContext& context, const LocalStepArgs& args) {
  args.dtype == DType::kF64 ? LocalStep<double>(context, args) : LocalStep<float>(context, args);
}

}  // namespace apogee::optim::cuda
