// SPDX-License-Identifier: Apache-2.0

// Shared by LAMB and LARS: adds the sums of squares of a parameter's weights and of its update to
// this rank's partials, and computes the two norms from the totals. Private to optim/cuda.
#ifndef APOGEE_OPTIM_CUDA_DEVICE_TRUST_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_TRUST_CUH_

#include "apogee/optim/adam/trust_kernels.h"
#include "apogee/optim/cuda/device/dispatch_stats.h"
#include "apogee/optim/cuda/device/reduce.cuh"
#include "apogee/optim/cuda/device/update.cuh"

namespace apogee::optim::cuda {

// direction(chunk, at, w) returns the update u of a pack of weights. Elements after the end of the
// chunk do not count.
template <typename C, typename Chunk, typename Direction>
struct TrustTerms {
  Direction settings;

  __device__ void operator()(const Chunk& chunk, int64_t begin, int64_t end,
                             double (&sums)[2]) const {
    Direction direction = settings;
    if (!OpenGate(direction)) return;
    const bool aligned = AreAligned(chunk.weight, chunk.grad) && direction.Aligned(chunk);
    ForEachPack<kUpdatePack>(begin, end, aligned, [&](const auto& at) {
      const UpdatePack<C> w = LoadWeight<C>(chunk, at);
      const UpdatePack<C> u = direction(chunk, at, w);
#pragma unroll
      for (int k = 0; k < kUpdatePack; ++k) {
        if (!at.Has(k)) continue;
        const double x = w.at[k], y = u.at[k];
        sums[0] += x * x;
        sums[1] += y * y;
      }
    });
  }
};

template <typename S>
struct AddToPartials {
  template <typename Chunk>
  __device__ void operator()(const Chunk& chunk, int64_t, const double (&totals)[2]) const {
    S* sums = static_cast<S*>(chunk.sums);
    sums[0] += static_cast<S>(totals[0]);
    sums[1] += static_cast<S>(totals[1]);
  }
};

template <typename C, typename S, typename Chunk, typename Direction>
void AddTrustSums(const DeviceContext& context, std::span<const Chunk> chunks,
                  const Direction& direction) {
  ReduceChunks<2, Sum>(context, chunks, TrustTerms<C, Chunk, Direction>{direction},
                       AddToPartials<S>{});
}

struct TrustNorms {
  double weight, update;
};
template <typename S>
__device__ __forceinline__ TrustNorms NormsOf(const TrustChunk& chunk) {
  const S* sums = static_cast<const S*>(chunk.sums);
  return {sqrt(static_cast<double>(sums[0])), sqrt(static_cast<double>(sums[1]))};
}

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_TRUST_CUH_
