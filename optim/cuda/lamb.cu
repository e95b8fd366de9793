// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/trust.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <typename C>
struct LambCoefficients {
  DeviceScale<C> grad_scale;
  C beta1, grad_weight, beta2, one_minus_beta2, eps, decay;

  explicit LambCoefficients(const LambArgs& args)
      : grad_scale(args.grad_scale),
        beta1(static_cast<C>(args.beta1)),
        grad_weight(static_cast<C>(args.grad_weight)),
        beta2(static_cast<C>(args.beta2)),
        one_minus_beta2(static_cast<C>(1 - args.beta2)),
        eps(static_cast<C>(args.eps)),
        decay(static_cast<C>(args.decay)) {}

  // Returns the direction u of the pack. m and v become the new moments.
  template <typename At>
  __device__ UpdatePack<C> Direction(const LambChunk& chunk, const At& at, const UpdatePack<C>& w,
                                     UpdatePack<C>& m, UpdatePack<C>& v) const {
    m = LoadState<C>(chunk.exp_avg, at);
    v = LoadState<C>(chunk.exp_avg_sq, at);
    const UpdatePack<C> grad = LoadGrad<C>(chunk, at);
    const C mean_scale = static_cast<C>(chunk.mean_scale);
    const C root_scale = static_cast<C>(chunk.root_scale);
    UpdatePack<C> u;
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      const C g = grad_scale * grad.at[k];
      m.at[k] = beta1 * m.at[k] + grad_weight * g;
      v.at[k] = beta2 * v.at[k] + one_minus_beta2 * (g * g);
      u.at[k] = mean_scale * m.at[k] / (root_scale * sqrt(v.at[k]) + eps) + decay * w.at[k];
    }
    return u;
  }
  __device__ bool Aligned(const LambChunk& chunk) const {
    return AreAligned(chunk.exp_avg, chunk.exp_avg_sq);
  }
};

template <typename C>
struct LambDirection {
  LambCoefficients<C> c;

  __device__ bool Open() { return c.grad_scale.Open(); }
  __device__ bool Aligned(const LambChunk& chunk) const { return c.Aligned(chunk); }
  template <typename At>
  __device__ UpdatePack<C> operator()(const LambChunk& chunk, const At& at,
                                      const UpdatePack<C>& w) const {
    UpdatePack<C> m, v;
    return c.Direction(chunk, at, w, m, v);
  }
};

template <typename C, typename S>
struct LambStep {
  LambCoefficients<C> c;
  double min_ratio, max_ratio;

  __device__ bool Open() { return c.grad_scale.Open(); }
  __device__ bool Aligned(const LambChunk& chunk) const { return c.Aligned(chunk); }
  __device__ C Prepare(const LambChunk& chunk) const {
    if (!chunk.trusted) return static_cast<C>(chunk.step_size);
    const TrustNorms norms = NormsOf<S>(chunk);
    double ratio = 1;
    if (norms.weight != 0 && norms.update != 0) {
      ratio = norms.weight / norms.update;
      ratio = ratio < min_ratio ? min_ratio : ratio > max_ratio ? max_ratio : ratio;
    }
    return static_cast<C>(chunk.step_size * ratio);
  }
  template <typename At>
  __device__ UpdatePack<C> operator()(const LambChunk& chunk, const At& at, C step) const {
    UpdatePack<C> w = LoadWeight<C>(chunk, at), m, v;
    const UpdatePack<C> u = c.Direction(chunk, at, w, m, v);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) w.at[k] -= step * u.at[k];
    StoreState(chunk.exp_avg, at, m);
    StoreState(chunk.exp_avg_sq, at, v);
    return w;
  }
};

// One thread adds the squares in the order of the parameters, as the host does.
__global__ void NormClipKernel(const DeviceFactor grad_scale, DType stat_dtype, const void* squares,
                               int64_t count, double limit, StepGate* gate) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += stat_dtype == DType::kF64 ? static_cast<const double*>(squares)[i]
                                     : static_cast<double>(static_cast<const float*>(squares)[i]);
  }
  const double scale = grad_scale.value();
  const double excess = sqrt(sum) * scale / limit;
  *gate = {};
  gate->grad_scale = excess > 1 ? scale / excess : scale;
  gate->skip = grad_scale.Skips();
}

}  // namespace

void norm_clip(const DeviceContext& context, const NormClipArgs& args) {
  Launch(context, {.threads = {1}}, &NormClipKernel, DeviceFactor(args.grad_scale), args.stat_dtype,
         args.squares, args.count, args.limit, args.gate);
}

void lamb_sums(const DeviceContext& context, const LambArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    AddTrustSums<C, S>(context, args.chunks, LambDirection<C>{LambCoefficients<C>(args)});
  });
}

void lamb(const DeviceContext& context, const LambArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    UpdateChunks<C>(context, args.chunks,
                    LambStep<C, S>{LambCoefficients<C>(args), args.min_ratio, args.max_ratio});
  });
}

}  // namespace apogee::optim::cuda
