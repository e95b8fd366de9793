#include "apogee/optim/cuda/kernels.h"
#include "apogee/optim/cuda/update.cuh"

namespace apogee::optim::cuda {
namespace {

template <typename C>
struct LowRankStep {
  C before, after, scale;

  __device__ bool Aligned(const UpdateChunk&) const { return true; }
  template <typename At>
  __device__ UpdatePack<C> operator()(const UpdateChunk& chunk, const At& at) const {
    UpdatePack<C> w = LoadWeight<C>(chunk, at);
    const UpdatePack<C> update = LoadGrad<C>(chunk, at);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      const C moved = w.at[k] - before * w.at[k] + scale * update.at[k];
      w.at[k] = moved - after * moved;
    }
    return w;
  }
};

template <typename C>
void Run(const DeviceContext& context, const LowRankArgs& args) {
  const auto decay_if = [&](DecayKind kind) {
    return static_cast<C>(args.decay_kind == kind ? args.decay : 0);
  };
  UpdateChunks<C>(context, args.chunks,
                  LowRankStep<C>{decay_if(DecayKind::kBefore), decay_if(DecayKind::kAfter),
                                 static_cast<C>(args.scale)});
}

}  // namespace

void low_rank_update(const DeviceContext& context, const LowRankArgs& args) {
  args.dtype == DType::kF64 ? Run<double>(context, args) : Run<float>(context, args);
}

}  // namespace apogee::optim::cuda
