// SPDX-License-Identifier: Apache-2.0

// Shared by Adafactor and CAME: the normalised gradient of a tile, and the loop of their updates.
// AdaLomo uses the divisor. Private to optim/cuda.
#ifndef APOGEE_OPTIM_CUDA_DEVICE_SECOND_MOMENT_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_SECOND_MOMENT_CUH_

#include <limits>

#include "apogee/optim/cuda/device/dispatch_stats.h"
#include "apogee/optim/cuda/device/region_loop.cuh"
#include "apogee/optim/cuda/device/update.cuh"

namespace apogee::optim::cuda {

static_assert(kUpdatePack == kRunPack);

// The divisor of an update: max(1, rms(u) / threshold); NaN stays NaN.
template <typename S>
__device__ __forceinline__ double ClipDivisor(const void* update_sum, int64_t numel,
                                              double threshold) {
  const double sum = static_cast<double>(*static_cast<const S*>(update_sum));
  const double ratio = sqrt(sum / static_cast<double>(numel)) / threshold;
  return ratio < 1 ? 1 : ratio;
}

struct MomentSettings {
  DeviceFactor grad_scale;
  double eps, limit;
};

// The factors of a tile's rows and columns; none if the chunk is not factored.
template <typename C>
struct TileFactors {
  const C* rows = nullptr;
  ColumnPacks<C> columns;

  __device__ TileFactors(const FactoredChunk& chunk, const void* factors, const TileOfRegion& t)
      : columns(chunk.rows > 0 ? static_cast<const C*>(factors) + chunk.rows + t.global_column
                               : nullptr,
                t.cols) {
    if (chunk.rows > 0) rows = static_cast<const C*>(factors);
  }
};

template <typename C>
struct Normaliser {
  C grad_scale, beta2, one_minus_beta2, eps, limit;
  TileFactors<C> factors;

  __device__ Normaliser(const MomentSettings& settings, const FactoredChunk& chunk,
                        const TileOfRegion& t)
      : grad_scale(static_cast<C>(settings.grad_scale.value())),
        beta2(static_cast<C>(chunk.beta2)),
        one_minus_beta2(static_cast<C>(1 - chunk.beta2)),
        eps(static_cast<C>(settings.eps)),
        limit(static_cast<C>(settings.limit)),
        factors(chunk, chunk.factors, t) {}

  // The run's normalised gradient (u of AdafactorUpdateSumArgs). With kStore, stores the new second
  // moment of a chunk that is not factored.
  template <bool kStore, typename At>
  __device__ Pack<C, kRunPack> Run(const FactoredChunk& chunk, int64_t row, int step,
                                   const At& at) const {
    Pack<C, kRunPack> u;
    if (factors.rows != nullptr) {
      const C row_factor = factors.rows[row];
      const Pack<C, kRunPack> grad = LoadGrad<C>(chunk, at);
#pragma unroll
      for (int k = 0; k < kRunPack; ++k) {
        u.at[k] = grad_scale * grad.at[k] * AtMost(row_factor * factors.columns.at[step].at[k]);
      }
    } else {
      Pack<C, kRunPack> v = LoadState<C>(chunk.exp_avg_sq, at);
      const Pack<C, kRunPack> grad = LoadGrad<C>(chunk, at);
#pragma unroll
      for (int k = 0; k < kRunPack; ++k) {
        const C g = grad_scale * grad.at[k];
        v.at[k] = beta2 * v.at[k] + one_minus_beta2 * (g * g + eps);
        u.at[k] = g * AtMost(C(1) / sqrt(v.at[k]));
      }
      if constexpr (kStore) StoreState(chunk.exp_avg_sq, at, v);
    }
    return u;
  }
  // The smaller of x and limit; NaN stays NaN.
  __device__ C AtMost(C x) const { return x > limit ? limit : x; }
};

// Called on the host. A limit beyond the range of C becomes the largest number of C.
template <typename C>
MomentSettings SettingsOf(const GradFactor& grad_scale, double eps, double limit) {
  return {DeviceFactor(grad_scale), eps,
          std::min(limit, static_cast<double>(std::numeric_limits<C>::max()))};
}

__device__ __forceinline__ bool AreTensorsAligned(const FactoredChunk& chunk) {
  return AreAligned(chunk.weight, chunk.grad, chunk.working, chunk.exp_avg, chunk.exp_avg_sq);
}

// A Rule has
//   bool Skips()
//   struct Tile, constructed from (rule, chunk, tile)
//   Pack operator()(chunk, tile, row, step, at), which returns the run's new weights
template <typename C, typename Rule>
struct FactoredUpdateBody {
  Rule rule;

  __device__ void operator()(const RegionTask& task, int64_t tile) const {
    if (rule.Skips()) return;
    const FactoredChunk& chunk = task.chunk;
    const TileOfRegion t(task.region, tile);
    const typename Rule::Tile prepared(rule, chunk, t);
    const bool aligned = AreTensorsAligned(chunk);
    t.ForEachRow([&](int64_t i, int64_t local) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        t.At(s, local, aligned, [&](const auto& at) {
          const Pack<C, kRunPack> w = rule(chunk, prepared, t.global_row + i, s, at);
          at.Store(static_cast<C*>(chunk.weight), w);
          if (chunk.working != nullptr) StoreAs(at, chunk.working, chunk.working_dtype, w);
        });
      }
    });
  }
};

template <typename C, typename Rule>
void UpdateFactored(const DeviceContext& context, std::span<const FactoredChunk> chunks,
                    const Rule& rule) {
  ForEachRegionTile(context, RegionTasks(chunks), FactoredUpdateBody<C, Rule>{rule});
}

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_SECOND_MOMENT_CUH_
