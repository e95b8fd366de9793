// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/second_moment.h"

namespace apogee::optim::cpu {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

template <typename C>
struct UpdateCoefficients {
  C inv_clip, beta1, one_minus_beta1, lr, decay;
};
template <typename C, typename S>
UpdateCoefficients<C> MakeUpdateCoefficients(const FactoredChunk& chunk, const CameArgs& args) {
  return {static_cast<C>(1 / ClipDivisor<S>(chunk.update_sum, chunk.numel, args.clip_threshold)),
          static_cast<C>(args.beta1), static_cast<C>(1 - args.beta1), static_cast<C>(args.lr),
          static_cast<C>(args.decay)};
}

template <typename C>
void UpdateRow(const FactoredChunk& chunk, const RowBlock& block, int64_t i, int64_t local,
               C* __restrict weight, const C* __restrict grad, const MomentCoefficients<C> moments,
               const UpdateCoefficients<C> c) {
  C* __restrict exp_avg = static_cast<C*>(chunk.exp_avg) + local;
  const bool confident = chunk.rows > 0;
  const C* factors = static_cast<const C*>(chunk.residual_factors);
  const C row = confident ? c.lr * factors[block.row + i] : c.lr;
  const C* __restrict column = confident ? factors + chunk.rows + block.column : nullptr;
  ForNormalized<true>(
      chunk, block, i, local, grad,
      moments, [&](int64_t j, auto kind, auto u) __attribute__((always_inline)) {
        using V = decltype(kind);
        const V m = c.beta1 * Load<V>(exp_avg + j) + c.one_minus_beta1 * (c.inv_clip * u);
        Store(exp_avg + j, m);
        V step = row * m;
        if (confident) step *= Load<V>(column + j);
        const V w = Load<V>(weight + j);
        Store(weight + j, V(w - c.decay * w - step));
      });
}

}  // namespace

void came_residual_sums(const DeviceContext& context, const CameArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    AddBlockSums<C, S>(
        context, args.chunks, true, false,
        [&](const FactoredChunk& chunk, const RowBlock& block, C* rows, C* columns) {
          if (rows == nullptr) return 0.0;
          const auto moments =
              MakeMomentCoefficients<C>(chunk, args.grad_scale, args.eps, kNoLimit);
          const auto c = MakeUpdateCoefficients<C, S>(chunk, args);
          ForEachGradRow<C>(chunk, block, [&](int64_t i, int64_t local, const C* grad) {
            const C* __restrict exp_avg = static_cast<const C*>(chunk.exp_avg) + local;
            LaneSum<C> sum;
            ForNormalized<false>(
                chunk, block, i, local, grad,
                moments, [&](int64_t j, auto kind, auto normalized) __attribute__((always_inline)) {
                  using V = decltype(kind);
                  const V u = c.inv_clip * normalized;
                  const V m = c.beta1 * Load<V>(exp_avg + j) + c.one_minus_beta1 * u;
                  const V square = (u - m) * (u - m);
                  Store(columns + j, V(Load<V>(columns + j) + square));
                  sum.Add(square);
                });
            rows[i] = sum.Total();
          });
          return 0.0;
        });
  });
}

void came(const DeviceContext& context, const CameArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    UpdateBlocks<C>(
        context, args.chunks,
        [&](const FactoredChunk& chunk) { return MakeUpdateCoefficients<C, S>(chunk, args); },
        [&](const UpdateCoefficients<C>& c, const FactoredChunk& chunk, const RowBlock& block,
            int64_t i, int64_t local, C* weight, const C* grad) {
          const auto moments =
              MakeMomentCoefficients<C>(chunk, args.grad_scale, args.eps, kNoLimit);
          UpdateRow<C>(chunk, block, i, local, weight, grad, moments, c);
        });
  });
}

}  // namespace apogee::optim::cpu
