// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "apogee/optim/cuda/device/gate.cuh"
#include "apogee/optim/cuda/device/tile_list.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

static_assert(kNormHistory <= kTileThreads);

// One block per tensor, one thread per norm. The limit is found by counting: it is the norm with
// `percentile` norms before it.
struct PercentileBody {
  DeviceFactor grad_scale;
  DType stat_dtype;
  bool store;

  __device__ void operator()(const PercentileChunk& chunk, int64_t) const {
    chunk.dtype == DType::kF64 ? Clip<double>(chunk) : Clip<float>(chunk);
  }

  template <typename C>
  __device__ void Clip(const PercentileChunk& chunk) const {
    __shared__ double history[kNormHistory];
    __shared__ double limit;
    const double scale = grad_scale.value();
    const double sum = stat_dtype == DType::kF64
                           ? *static_cast<const double*>(chunk.squares)
                           : static_cast<double>(*static_cast<const float*>(chunk.squares));
    const double squares = sum * scale * scale;
    const int i = static_cast<int>(threadIdx.x);
    if (i < kNormHistory) {
      C* state = static_cast<C*>(chunk.history) + i;
      const bool taken = chunk.step == 1 || i == chunk.step % kNormHistory;
      history[i] = taken ? squares : static_cast<double>(*state);
      if (store && taken && !grad_scale.Skips()) *state = static_cast<C>(squares);
    }
    if (i == 0) limit = squares;  // for NaN, which has no order
    __syncthreads();
    if (i < kNormHistory) {
      int before = 0;
      for (int j = 0; j < kNormHistory; ++j) {
        before += history[j] < history[i] || (history[j] == history[i] && j < i) ? 1 : 0;
      }
      if (before == chunk.percentile) limit = history[i];
    }
    __syncthreads();
    if (i != 0) return;
    const double norm = sqrt(squares), most = sqrt(limit);
    *chunk.gate = {};
    chunk.gate->grad_scale = norm > most ? scale * most / norm : scale;
    chunk.gate->skip = grad_scale.Skips();
  }
};

}  // namespace

void percentile_clip(const DeviceContext& context, const PercentileArgs& args) {
  ForEachTile(
      context, args.chunks, [](const PercentileChunk&) { return int64_t{1}; },
      PercentileBody{DeviceFactor(args.grad_scale), args.stat_dtype, args.store});
}

}  // namespace apogee::optim::cuda
