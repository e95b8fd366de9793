// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/update.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

struct ScaleBody {
  double factor, limit;

  __device__ void operator()(const ScaleChunk& chunk, int64_t tile) const {
    const int64_t begin = tile * kUpdateTile;
    const int64_t end = begin + kUpdateTile < chunk.n ? begin + kUpdateTile : chunk.n;
    chunk.grad_dtype == DType::kF64 ? Scale<double>(chunk, begin, end)
                                    : Scale<float>(chunk, begin, end);
  }
  template <typename C>
  __device__ void Scale(const ScaleChunk& chunk, int64_t begin, int64_t end) const {
    const C by = static_cast<C>(factor), most = static_cast<C>(limit);
    ForEachPack<kUpdatePack>(begin, end, AreAligned(chunk.grad), [&](const auto& at) {
      UpdatePack<C> g = LoadAs<C>(at, chunk.grad, chunk.grad_dtype);
#pragma unroll
      for (C& x : g.at) x = ClampTo(by * x, most);
      StoreAs(at, chunk.grad, chunk.grad_dtype, g);
    });
  }
};

}  // namespace

void grad_scale(const DeviceContext& context, const ScaleArgs& args) {
  ForEachTile(
      context, args.chunks, [](const ScaleChunk& chunk) { return CeilDiv(chunk.n, kUpdateTile); },
      ScaleBody{args.factor, args.limit});
}

}  // namespace apogee::optim::cuda
