// SPDX-License-Identifier: Apache-2.0

// Element-wise updates of the weights of many parameters; most optimizer kernels are built from it.
// Private to optim/cuda.
//
//   template <typename C>
//   struct LarsStep {
//     C lr, ...;
//     __device__ bool Aligned(const LarsChunk& c) const { return AreAligned(c.momentum_buffer); }
//     template <typename At>
//     __device__ UpdatePack<C> operator()(const LarsChunk& chunk, const At& at) const {
//       UpdatePack<C> w = at.template Load<C>(static_cast<const C*>(chunk.weight));
//       ...                                                     // loads and stores the states
//       return w;                                               // the new weights
//     }
//   };
//   UpdateChunks<C>(context, args.chunks, LarsStep<C>{...});
//
// UpdateChunks stores the weights and, if there are any, the working weights. It makes one pass
// over memory. A step may have Prepare(chunk), which runs once per tile and thread; its result is
// then the last argument of operator(). A step that multiplies gradients by a DeviceScale has
// Open() (gate.cuh).
#ifndef APOGEE_OPTIM_CUDA_DEVICE_UPDATE_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_UPDATE_CUH_

#include "apogee/optim/core/update_chunk.h"
#include "apogee/optim/cuda/device/gate.cuh"
#include "apogee/optim/cuda/device/packs.cuh"

namespace apogee::optim::cuda {

// With four tensors of f32, packs of four keep enough loads in flight.
inline constexpr int kUpdatePack = 4;
template <typename C>
using UpdatePack = Pack<C, kUpdatePack>;
inline constexpr int64_t kUpdateTile = int64_t{kTileThreads} * kUpdatePack * 4;

template <typename C, typename At>
__device__ __forceinline__ UpdatePack<C> LoadWeight(const UpdateChunk& chunk, const At& at) {
  return at.template Load<C>(static_cast<const C*>(chunk.weight));
}
template <typename C, typename At>
__device__ __forceinline__ UpdatePack<C> LoadGrad(const UpdateChunk& chunk, const At& at) {
  return LoadAs<C>(at, chunk.grad, chunk.grad_dtype);
}
// Loads from a state, which has the compute dtype.
template <typename C, typename At>
__device__ __forceinline__ UpdatePack<C> LoadState(const void* state, const At& at) {
  return at.template Load<C>(static_cast<const C*>(state));
}
template <typename C, typename At>
__device__ __forceinline__ void StoreState(void* state, const At& at, const UpdatePack<C>& pack) {
  at.Store(static_cast<C*>(state), pack);
}

template <typename C, typename Chunk, typename Step>
struct UpdateBody {
  Step settings;

  __device__ void operator()(const Chunk& chunk, int64_t tile) const {
    Step step = settings;
    if (!OpenGate(step)) return;
    const int64_t begin = tile * kUpdateTile;
    const int64_t end = begin + kUpdateTile < chunk.n ? begin + kUpdateTile : chunk.n;
    const bool aligned = AreAligned(chunk.weight, chunk.grad, chunk.working) && step.Aligned(chunk);
    const auto store = [&](const auto& at, const UpdatePack<C>& w) {
      at.Store(static_cast<C*>(chunk.weight), w);
      if (chunk.working != nullptr) StoreAs(at, chunk.working, chunk.working_dtype, w);
    };
    if constexpr (requires { step.Prepare(chunk); }) {
      const auto prepared = step.Prepare(chunk);
      ForEachPack<kUpdatePack>(begin, end, aligned,
                               [&](const auto& at) { store(at, step(chunk, at, prepared)); });
    } else {
      ForEachPack<kUpdatePack>(begin, end, aligned,
                               [&](const auto& at) { store(at, step(chunk, at)); });
    }
  }
};

template <typename C, typename Chunk, typename Step>
void UpdateChunks(const DeviceContext& context, std::span<const Chunk> chunks, const Step& step) {
  ForEachTile(
      context, chunks, [](const Chunk& chunk) { return CeilDiv(chunk.n, kUpdateTile); },
      UpdateBody<C, Chunk, Step>{step});
}

__device__ __forceinline__ double RateOf(const SizedRate& rate) {
  if (rate.weight_sum == nullptr) return rate.rate;
  const double sum = rate.stat_dtype == DType::kF64
                         ? *static_cast<const double*>(rate.weight_sum)
                         : static_cast<double>(*static_cast<const float*>(rate.weight_sum));
  const double rms = sqrt(sum / static_cast<double>(rate.numel));
  return rate.rate * (rms < rate.floor ? rate.floor : rms);
}

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_UPDATE_CUH_
