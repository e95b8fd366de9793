// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/reduce.cuh"
#include "apogee/optim/cuda/device/update.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <typename C>
struct OneBitLambCoefficients {
  explicit OneBitLambCoefficients(const OneBitLambArgs& args)
      : beta1(static_cast<C>(args.beta1)),
        beta2(static_cast<C>(args.beta2)),
        eps(static_cast<C>(args.eps)),
        decay(static_cast<C>(args.decay)),
        recover(static_cast<C>(1 / (1 - args.beta1))),
        one_minus_beta2(static_cast<C>(1 - args.beta2)) {}
  // The fresh second moment, updated with the gradient that the two momenta imply.
  __device__ C Fresh(C m, C previous, C fresh) const {
    const C g = (m - beta1 * previous) * recover;
    return beta2 * fresh + one_minus_beta2 * g * g;
  }
  C beta1, beta2, eps, decay, recover, one_minus_beta2;
};

template <typename C>
struct OneBitLambSquares {
  OneBitLambCoefficients<C> c;

  __device__ void operator()(const OneBitLambChunk& chunk, int64_t begin, int64_t end,
                             double (&sums)[2]) const {
    const bool aligned = AreAligned(chunk.weight, chunk.grad, chunk.exp_avg_sq);
    ForEachPack<kUpdatePack>(begin, end, aligned, [&](const auto& at) {
      const UpdatePack<C> w = LoadWeight<C>(chunk, at);
      const UpdatePack<C> m = LoadState<C>(chunk.grad, at);
      const UpdatePack<C> v = LoadState<C>(chunk.exp_avg_sq, at);
#pragma unroll
      for (int k = 0; k < kUpdatePack; ++k) {
        if (!at.Has(k)) continue;
        const C direction = m.at[k] / (sqrt(v.at[k]) + c.eps);
        const C update = direction + c.decay * w.at[k];
        sums[0] += static_cast<double>(direction) * static_cast<double>(direction);
        sums[1] += static_cast<double>(update) * static_cast<double>(update);
      }
    });
  }
};

// Finds the largest ratio; ignores NaN.
template <typename C>
struct RatioTerms {
  OneBitLambCoefficients<C> c;

  __device__ void operator()(const OneBitLambChunk& chunk, int64_t begin, int64_t end,
                             double (&largest)[1]) const {
    const bool aligned = AreAligned(chunk.grad, chunk.exp_avg, chunk.exp_avg_sq, chunk.fresh);
    ForEachPack<kUpdatePack>(begin, end, aligned, [&](const auto& at) {
      const UpdatePack<C> m = LoadState<C>(chunk.grad, at);
      const UpdatePack<C> previous = LoadState<C>(chunk.exp_avg, at);
      const UpdatePack<C> v = LoadState<C>(chunk.exp_avg_sq, at);
      const UpdatePack<C> fresh = LoadState<C>(chunk.fresh, at);
#pragma unroll
      for (int k = 0; k < kUpdatePack; ++k) {
        if (!at.Has(k) || v.at[k] == 0) continue;
        const C root = sqrt(v.at[k]) + c.eps;
        const C ratio = root / (sqrt(c.Fresh(m.at[k], previous.at[k], fresh.at[k])) + c.eps);
        if (ratio > largest[0]) largest[0] = ratio;
      }
    });
  }
};

template <typename S>
struct AddSquares {
  __device__ void operator()(const OneBitLambChunk& chunk, int64_t,
                             const double (&totals)[2]) const {
    S* sums = static_cast<S*>(chunk.sums);
    sums[0] += static_cast<S>(totals[0]);
    sums[1] += static_cast<S>(totals[1]);
  }
};
template <typename S>
struct StoreLargest {
  __device__ void operator()(const OneBitLambChunk& chunk, int64_t,
                             const double (&totals)[1]) const {
    *static_cast<S*>(chunk.max) = static_cast<S>(totals[0]);
  }
};

template <typename C, typename S>
void LambSums(const DeviceContext& context, const OneBitLambArgs& args) {
  const OneBitLambCoefficients<C> c(args);
  ReduceChunks<2, Sum>(context, args.chunks, OneBitLambSquares<C>{c}, AddSquares<S>{});
  ReduceChunks<1, Max>(context, args.chunks, RatioTerms<C>{c}, StoreLargest<S>{});
}

template <typename C>
struct OneBitLambStep {
  OneBitLambCoefficients<C> c;

  __device__ bool Aligned(const OneBitLambChunk& chunk) const {
    return AreAligned(chunk.exp_avg, chunk.exp_avg_sq, chunk.fresh);
  }
  template <typename At>
  __device__ UpdatePack<C> operator()(const OneBitLambChunk& chunk, const At& at) const {
    UpdatePack<C> w = LoadWeight<C>(chunk, at);
    const UpdatePack<C> m = LoadState<C>(chunk.grad, at);
    const UpdatePack<C> previous = LoadState<C>(chunk.exp_avg, at);
    const UpdatePack<C> v = LoadState<C>(chunk.exp_avg_sq, at);
    UpdatePack<C> fresh = LoadState<C>(chunk.fresh, at);
    const C step = static_cast<C>(chunk.step_size);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      fresh.at[k] = c.Fresh(m.at[k], previous.at[k], fresh.at[k]);
      w.at[k] -= step * (m.at[k] / (sqrt(v.at[k]) + c.eps) + c.decay * w.at[k]);
    }
    StoreState(chunk.fresh, at, fresh);
    StoreState(chunk.exp_avg, at, m);
    return w;
  }
};

}  // namespace

void onebit_lamb_sums(const DeviceContext& context, const OneBitLambArgs& args) {
  const bool stats64 = args.stat_dtype == DType::kF64;
  if (args.dtype == DType::kF64) return LambSums<double, double>(context, args);
  stats64 ? LambSums<float, double>(context, args) : LambSums<float, float>(context, args);
}
void onebit_lamb(const DeviceContext& context, const OneBitLambArgs& args) {
  if (args.dtype == DType::kF64) {
    UpdateChunks<double>(context, args.chunks,
                         OneBitLambStep<double>{OneBitLambCoefficients<double>(args)});
  } else {
    UpdateChunks<float>(context, args.chunks,
                        OneBitLambStep<float>{OneBitLambCoefficients<float>(args)});
  }
}

}  // namespace apogee::optim::cuda
