// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/update.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

// The kind of decay is the same for all elements; the branch costs nothing next to the loads.
template <typename C, bool kAmsgrad>
struct AdamStep {
  DecayKind decay_kind;
  DeviceScale<C> grad_scale;
  C decay, beta1, beta2, one_minus_beta1, one_minus_beta2, eps;

  __device__ bool Open() { return grad_scale.Open(); }
  __device__ bool Aligned(const AdamChunk& chunk) const {
    return AreAligned(chunk.exp_avg, chunk.exp_avg_sq, chunk.max_exp_avg_sq);
  }

  template <typename At>
  __device__ UpdatePack<C> operator()(const AdamChunk& chunk, const At& at) const {
    UpdatePack<C> w = LoadWeight<C>(chunk, at);
    UpdatePack<C> m = LoadState<C>(chunk.exp_avg, at);
    UpdatePack<C> v = LoadState<C>(chunk.exp_avg_sq, at);
    UpdatePack<C> largest;
    if constexpr (kAmsgrad) largest = LoadState<C>(chunk.max_exp_avg_sq, at);
    const UpdatePack<C> grad = LoadGrad<C>(chunk, at);
    const C step_size = static_cast<C>(chunk.step_size);
    const C root_scale = static_cast<C>(chunk.root_scale);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      C g = grad_scale * grad.at[k];
      if (decay_kind == DecayKind::kL2) g += decay * w.at[k];
      if (decay_kind == DecayKind::kBefore) w.at[k] -= decay * w.at[k];
      m.at[k] = beta1 * m.at[k] + one_minus_beta1 * g;
      v.at[k] = beta2 * v.at[k] + one_minus_beta2 * g * g;
      C second = v.at[k];
      if constexpr (kAmsgrad) {
        const C before = largest.at[k];
        second = second > before || second != second ? second : before;  // NaN wins
        largest.at[k] = second;
      }
      w.at[k] -= step_size * (m.at[k] / (root_scale * sqrt(second) + eps));
      if (decay_kind == DecayKind::kAfter) w.at[k] -= decay * w.at[k];
    }
    StoreState(chunk.exp_avg, at, m);
    StoreState(chunk.exp_avg_sq, at, v);
    if constexpr (kAmsgrad) StoreState(chunk.max_exp_avg_sq, at, largest);
    return w;
  }
};

template <typename C, bool kAmsgrad>
void RunAs(const DeviceContext& context, const AdamArgs& args) {
  UpdateChunks<C>(context, args.chunks,
                  AdamStep<C, kAmsgrad>{args.decay_kind, DeviceScale<C>(args.grad_scale),
                                        static_cast<C>(args.decay), static_cast<C>(args.beta1),
                                        static_cast<C>(args.beta2), static_cast<C>(1 - args.beta1),
                                        static_cast<C>(1 - args.beta2), static_cast<C>(args.eps)});
}

template <typename C>
void RunAdam(const DeviceContext& context, const AdamArgs& args) {
  args.amsgrad ? RunAs<C, true>(context, args) : RunAs<C, false>(context, args);
}

}  // namespace

void adam(const DeviceContext& context, const AdamArgs& args) {
  args.dtype == DType::kF64 ? RunAdam<double>(context, args) : RunAdam<float>(context, args);
}

}  // namespace apogee::optim::cuda
