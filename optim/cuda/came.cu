// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/region_sums.cuh"
#include "apogee/optim/cuda/device/second_moment.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <typename C, typename S>
struct CameSettings {
  explicit CameSettings(const CameArgs& args)
      : moments(SettingsOf<C>(args.grad_scale, args.eps, std::numeric_limits<double>::infinity())),
        clip_threshold(args.clip_threshold),
        beta1(static_cast<C>(args.beta1)),
        one_minus_beta1(static_cast<C>(1 - args.beta1)),
        lr(static_cast<C>(args.lr)),
        decay(static_cast<C>(args.decay)) {}

  // One over the clip divisor of u.
  __device__ C InverseClip(const FactoredChunk& chunk) const {
    return static_cast<C>(1 / ClipDivisor<S>(chunk.update_sum, chunk.numel, clip_threshold));
  }

  MomentSettings moments;
  double clip_threshold;
  C beta1, one_minus_beta1, lr, decay;
};

template <typename C, typename S>
struct ResidualTerms {
  struct Tile : Normaliser<C> {
    C inv_clip;
    __device__ Tile(const ResidualTerms& terms, const FactoredChunk& chunk, const TileOfRegion& t)
        : Normaliser<C>(terms.settings.moments, chunk, t),
          inv_clip(terms.settings.InverseClip(chunk)) {}
  };
  CameSettings<C, S> settings;

  __device__ bool Aligned(const FactoredChunk& chunk) const {
    return AreAligned(chunk.grad, chunk.exp_avg);
  }
  template <typename At>
  __device__ Pack<C, kRunPack> operator()(const FactoredChunk& chunk, const Tile& tile, int64_t row,
                                          int step, const At& at, double&) const {
    const Pack<C, kRunPack> old = LoadState<C>(chunk.exp_avg, at);
    Pack<C, kRunPack> squares = tile.template Run<false>(chunk, row, step, at);
#pragma unroll
    for (int k = 0; k < kRunPack; ++k) {
      const C u = tile.inv_clip * squares.at[k];
      const C m = settings.beta1 * old.at[k] + settings.one_minus_beta1 * u;
      squares.at[k] = (u - m) * (u - m);
    }
    return squares;
  }
};

template <typename C, typename S>
struct CameRule {
  struct Tile : Normaliser<C> {
    C inv_clip;
    TileFactors<C> residual;
    __device__ Tile(const CameRule& rule, const FactoredChunk& chunk, const TileOfRegion& t)
        : Normaliser<C>(rule.settings.moments, chunk, t),
          inv_clip(rule.settings.InverseClip(chunk)),
          residual(chunk, chunk.residual_factors, t) {}
  };
  CameSettings<C, S> settings;

  __device__ bool Skips() const { return settings.moments.grad_scale.Skips(); }
  template <typename At>
  __device__ Pack<C, kRunPack> operator()(const FactoredChunk& chunk, const Tile& tile, int64_t row,
                                          int step, const At& at) const {
    Pack<C, kRunPack> w = LoadWeight<C>(chunk, at);
    Pack<C, kRunPack> m = LoadState<C>(chunk.exp_avg, at);
    const Pack<C, kRunPack> u = tile.template Run<true>(chunk, row, step, at);
    const bool confident = tile.residual.rows != nullptr;
    const C row_factor = confident ? settings.lr * tile.residual.rows[row] : settings.lr;
#pragma unroll
    for (int k = 0; k < kRunPack; ++k) {
      m.at[k] = settings.beta1 * m.at[k] + settings.one_minus_beta1 * (tile.inv_clip * u.at[k]);
      C change = row_factor * m.at[k];
      if (confident) change *= tile.residual.columns.at[step].at[k];
      w.at[k] = w.at[k] - settings.decay * w.at[k] - change;
    }
    StoreState(chunk.exp_avg, at, m);
    return w;
  }
};

}  // namespace

void came_residual_sums(const DeviceContext& context, const CameArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    AddRegionSums<C, S, true, false>(context, RegionTasks(args.chunks, /*factored_only=*/true),
                                     ResidualTerms<C, S>{CameSettings<C, S>(args)});
  });
}

void came(const DeviceContext& context, const CameArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    UpdateFactored<C>(context, args.chunks, CameRule<C, S>{CameSettings<C, S>(args)});
  });
}

}  // namespace apogee::optim::cuda
