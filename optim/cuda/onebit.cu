// SPDX-License-Identifier: Apache-2.0

// 1-bit Adam and 0/1 Adam: momenta between two exchanges of messages.
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

}  // namespace

void blend(const DeviceContext& context, const BlendArgs& args) {
  args.dtype == DType::kF64 ? Blend<double>(context, args) : Blend<float>(context, args);
}

}  // namespace apogee::optim::cuda
