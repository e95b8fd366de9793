// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/update.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <typename C>
struct LowRankStep {
  DecayKind decay_kind;
  C scale;
  double decay;
  SizedRate decay_rate;
  const StepGate* gate;

  struct Decay {
    C before, after;
  };

  __device__ bool Open() const { return gate == nullptr || !gate->skip; }
  __device__ bool Aligned(const UpdateChunk&) const { return true; }
  __device__ Decay Prepare(const UpdateChunk&) const {
    const C amount = static_cast<C>(decay * RateOf(decay_rate));
    return {decay_kind == DecayKind::kBefore ? amount : C(0),
            decay_kind == DecayKind::kAfter ? amount : C(0)};
  }
  template <typename At>
  __device__ UpdatePack<C> operator()(const UpdateChunk& chunk, const At& at,
                                      const Decay& by) const {
    UpdatePack<C> w = LoadWeight<C>(chunk, at);
    const UpdatePack<C> update = LoadGrad<C>(chunk, at);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      const C moved = w.at[k] - by.before * w.at[k] + scale * update.at[k];
      w.at[k] = moved - by.after * moved;
    }
    return w;
  }
};

template <typename C>
void RunLowRank(const DeviceContext& context, const LowRankArgs& args) {
  UpdateChunks<C>(context, args.chunks,
                  LowRankStep<C>{args.decay_kind, static_cast<C>(args.scale), args.decay,
                                 args.decay_rate, args.gate});
}

}  // namespace

void low_rank_update(const DeviceContext& context, const LowRankArgs& args) {
  args.dtype == DType::kF64 ? RunLowRank<double>(context, args) : RunLowRank<float>(context, args);
}

}  // namespace apogee::optim::cuda
