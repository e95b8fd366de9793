// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/trust.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

// For the sums of LARS, the update is the gradient.
template <typename C>
struct LarsDirection {
  DeviceScale<C> grad_scale;

  __device__ bool Open() { return grad_scale.Open(); }
  __device__ bool Aligned(const LarsChunk&) const { return true; }
  template <typename At>
  __device__ UpdatePack<C> operator()(const LarsChunk& chunk, const At& at,
                                      const UpdatePack<C>&) const {
    UpdatePack<C> g = LoadGrad<C>(chunk, at);
#pragma unroll
    for (C& x : g.at) x *= grad_scale;
    return g;
  }
};

template <typename C, typename S>
struct LarsStep {
  DeviceScale<C> grad_scale;
  C lr, momentum, decay;
  double exact_decay, coefficient, eps;
  bool nesterov;

  __device__ bool Open() { return grad_scale.Open(); }
  __device__ bool Aligned(const LarsChunk& chunk) const {
    return AreAligned(chunk.momentum_buffer);
  }
  // The trust ratio.
  __device__ C Prepare(const LarsChunk& chunk) const {
    if (!chunk.trusted) return C{1};
    const TrustNorms norms = NormsOf<S>(chunk);
    if (norms.weight == 0 || norms.update == 0) return C{1};
    return static_cast<C>(coefficient * norms.weight /
                          (norms.update + exact_decay * norms.weight + eps));
  }
  template <typename At>
  __device__ UpdatePack<C> operator()(const LarsChunk& chunk, const At& at, C ratio) const {
    UpdatePack<C> w = LoadWeight<C>(chunk, at), buf;
    const bool has_momentum = chunk.momentum_buffer != nullptr;
    if (has_momentum) buf = LoadState<C>(chunk.momentum_buffer, at);
    const UpdatePack<C> grad = LoadGrad<C>(chunk, at);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      C d = ratio * (grad_scale * grad.at[k] + decay * w.at[k]);
      if (has_momentum) {
        const C b = momentum * buf.at[k] + d;
        buf.at[k] = b;
        d = nesterov ? d + momentum * b : b;
      }
      w.at[k] -= lr * d;
    }
    if (has_momentum) StoreState(chunk.momentum_buffer, at, buf);
    return w;
  }
};

}  // namespace

void lars_sums(const DeviceContext& context, const LarsArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    AddTrustSums<C, S>(context, args.chunks, LarsDirection<C>{DeviceScale<C>(args.grad_scale)});
  });
}

void lars(const DeviceContext& context, const LarsArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    UpdateChunks<C>(context, args.chunks,
                    LarsStep<C, S>{DeviceScale<C>(args.grad_scale), static_cast<C>(args.lr),
                                   static_cast<C>(args.momentum), static_cast<C>(args.decay),
                                   args.decay, args.coefficient, args.eps, args.nesterov});
  });
}

}  // namespace apogee::optim::cuda
