// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/region_sums.cuh"
#include "apogee/optim/cuda/device/second_moment.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <typename C>
__device__ __forceinline__ double SquareSum(const Pack<C, kRunPack>& x) {
  C sum = 0;
#pragma unroll
  for (int k = 0; k < kRunPack; ++k) sum += x.at[k] * x.at[k];
  return static_cast<double>(sum);
}

template <typename C, bool kWithWeights>
struct AdafactorSquares {
  struct Tile {
    C scale;
    __device__ Tile(const AdafactorSquares& terms, const FactoredChunk&, const TileOfRegion&)
        : scale(static_cast<C>(terms.grad_scale.value())) {}
  };
  DeviceFactor grad_scale;

  __device__ bool Aligned(const FactoredChunk& chunk) const {
    return AreAligned(chunk.weight, chunk.grad);
  }
  template <typename At>
  __device__ Pack<C, kRunPack> operator()(const FactoredChunk& chunk, const Tile& tile, int64_t,
                                          int, const At& at, double& scalar) const {
    if constexpr (kWithWeights) scalar += SquareSum(LoadWeight<C>(chunk, at));
    Pack<C, kRunPack> squares{};
    if (chunk.rows == 0) return squares;  // not factored: the gradient is not read
    const Pack<C, kRunPack> grad = LoadGrad<C>(chunk, at);
#pragma unroll
    for (int k = 0; k < kRunPack; ++k) {
      const C g = tile.scale * grad.at[k];
      squares.at[k] = g * g;
    }
    return squares;
  }
};

template <typename C>
struct UpdateTerms {
  struct Tile : Normaliser<C> {
    __device__ Tile(const UpdateTerms& terms, const FactoredChunk& chunk, const TileOfRegion& t)
        : Normaliser<C>(terms.settings, chunk, t) {}
  };
  MomentSettings settings;

  __device__ bool Aligned(const FactoredChunk& chunk) const {
    return AreAligned(chunk.grad, chunk.exp_avg_sq);
  }
  template <typename At>
  __device__ Pack<C, kRunPack> operator()(const FactoredChunk& chunk, const Tile& tile, int64_t row,
                                          int step, const At& at, double& scalar) const {
    Pack<C, kRunPack> u = tile.template Run<false>(chunk, row, step, at);
#pragma unroll
    for (int k = 0; k < kRunPack; ++k) u.at[k] = at.Has(k) ? u.at[k] : C(0);
    scalar += SquareSum(u);
    return {};
  }
};

template <typename C, typename S>
struct AdafactorRule {
  struct Tile : Normaliser<C> {
    C scale, decay;
    __device__ Tile(const AdafactorRule& rule, const FactoredChunk& chunk, const TileOfRegion& t)
        : Normaliser<C>(rule.settings, chunk, t) {
      const double alpha = RateOf(chunk.rate);
      scale = static_cast<C>(alpha /
                             ClipDivisor<S>(chunk.update_sum, chunk.numel, rule.clip_threshold));
      decay = static_cast<C>(rule.decay * (rule.decay_by_alpha ? alpha : 1));
    }
  };
  MomentSettings settings;
  double clip_threshold, decay;
  bool decay_by_alpha;
  C beta1, one_minus_beta1;

  __device__ bool Skips() const { return settings.grad_scale.Skips(); }
  template <typename At>
  __device__ Pack<C, kRunPack> operator()(const FactoredChunk& chunk, const Tile& tile, int64_t row,
                                          int step, const At& at) const {
    Pack<C, kRunPack> w = LoadWeight<C>(chunk, at);
    Pack<C, kRunPack> update{};
    if (chunk.exp_avg != nullptr) update = LoadState<C>(chunk.exp_avg, at);
    const Pack<C, kRunPack> u = tile.template Run<true>(chunk, row, step, at);
#pragma unroll
    for (int k = 0; k < kRunPack; ++k) {
      const C scaled = tile.scale * u.at[k];
      update.at[k] =
          chunk.exp_avg != nullptr ? beta1 * update.at[k] + one_minus_beta1 * scaled : scaled;
      w.at[k] = w.at[k] - tile.decay * w.at[k] - update.at[k];
    }
    if (chunk.exp_avg != nullptr) StoreState(chunk.exp_avg, at, update);
    return w;
  }
};

}  // namespace

void adafactor_square_sums(const DeviceContext& context, const AdafactorSumArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    const DeviceFactor scale(args.grad_scale);
    if (args.with_weights) {
      AddRegionSums<C, S, true, true>(context, RegionTasks(args.chunks),
                                      AdafactorSquares<C, true>{scale});
    } else {
      AddRegionSums<C, S, true, false>(context, RegionTasks(args.chunks, /*factored_only=*/true),
                                       AdafactorSquares<C, false>{scale});
    }
  });
}

void adafactor_update_sum(const DeviceContext& context, const AdafactorUpdateSumArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    AddRegionSums<C, S, false, true>(
        context, RegionTasks(args.chunks),
        UpdateTerms<C>{SettingsOf<C>(args.grad_scale, args.eps, args.limit)});
  });
}

void adafactor(const DeviceContext& context, const AdafactorArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    UpdateFactored<C>(
        context, args.chunks,
        AdafactorRule<C, S>{SettingsOf<C>(args.grad_scale, args.eps, args.limit),
                            args.clip_threshold, args.decay, args.decay_by_alpha,
                            static_cast<C>(args.beta1), static_cast<C>(1 - args.beta1)});
  });
}

}  // namespace apogee::optim::cuda
