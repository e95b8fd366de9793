// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/second_moment.h"

namespace apogee::optim::cpu {
namespace {

// Adds the square of each element of a row to its column's sum. Returns the sum over the row.
template <typename C>
C AddSquares(int64_t n, C scale, const C* __restrict x, C* __restrict columns) {
  LaneSum<C> sum;
  ForLanes<C>(
      n, [&](int64_t j, auto kind) __attribute__((always_inline)) {
        using V = decltype(kind);
        const V y = scale * Load<V>(x + j);
        const V square = y * y;
        Store(columns + j, V(Load<V>(columns + j) + square));
        sum.Add(square);
      });
  return sum.Total();
}

template <typename C>
C SumSquares(int64_t n, const C* __restrict x) {
  LaneSum<C> sum;
  ForLanes<C>(
      n, [&](int64_t j, auto kind) __attribute__((always_inline)) {
        const auto y = Load<decltype(kind)>(x + j);
        sum.Add(y * y);
      });
  return sum.Total();
}

template <typename C>
struct UpdateCoefficients {
  C scale, beta1, one_minus_beta1, decay;
};

template <typename C, bool kMomentum>
void UpdateRow(const FactoredChunk& chunk, const RowBlock& block, int64_t i, int64_t local,
               C* __restrict weight, const C* __restrict grad, const MomentCoefficients<C> moments,
               const UpdateCoefficients<C> c) {
  C* __restrict exp_avg = kMomentum ? static_cast<C*>(chunk.exp_avg) + local : nullptr;
  ForNormalized<true>(
      chunk, block, i, local, grad,
      moments, [&](int64_t j, auto kind, auto u) __attribute__((always_inline)) {
        using V = decltype(kind);
        V update = c.scale * u;
        if constexpr (kMomentum) {
          update = c.beta1 * Load<V>(exp_avg + j) + c.one_minus_beta1 * update;
          Store(exp_avg + j, update);
        }
        const V w = Load<V>(weight + j);
        Store(weight + j, V(w - c.decay * w - update));
      });
}

}  // namespace

void adafactor_square_sums(const DeviceContext& context, const AdafactorSumArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    AddBlockSums<C, S>(context, args.chunks, true, args.with_weights,
                       [&](const FactoredChunk& chunk, const RowBlock& block, C* rows, C* columns) {
                         const C scale = static_cast<C>(args.grad_scale);
                         double weight_sum = 0;
                         const auto add_weights = [&](int64_t local) {
                           if (!args.with_weights) return;
                           weight_sum += static_cast<double>(
                               SumSquares(block.cols, static_cast<const C*>(chunk.weight) + local));
                         };
                         if (rows == nullptr) {  // not factored: the gradient is not read
                           for (int64_t i = 0; i < block.rows; ++i)
                             add_weights(block.local + i * chunk.row_stride);
                           return weight_sum;
                         }
                         ForEachGradRow<C>(chunk, block,
                                           [&](int64_t i, int64_t local, const C* grad) {
                                             rows[i] = AddSquares(block.cols, scale, grad, columns);
                                             add_weights(local);
                                           });
                         return weight_sum;
                       });
  });
}

void adafactor_update_sum(const DeviceContext& context, const AdafactorUpdateSumArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    AddBlockSums<C, S>(
        context, args.chunks, false, true,
        [&](const FactoredChunk& chunk, const RowBlock& block, C*, C*) {
          const auto c = MakeMomentCoefficients<C>(chunk, args.grad_scale, args.eps, args.limit);
          double total = 0;
          ForEachGradRow<C>(chunk, block, [&](int64_t i, int64_t local, const C* grad) {
            LaneSum<C> sum;
            ForNormalized<false>(
                chunk, block, i, local, grad,
                c, [&](int64_t, auto, auto u) __attribute__((always_inline)) { sum.Add(u * u); });
            total += static_cast<double>(sum.Total());
          });
          return total;
        });
  });
}

void adafactor(const DeviceContext& context, const AdafactorArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    const auto prepare = [&](const FactoredChunk& chunk) {
      const double alpha = RateOf(chunk.rate);
      const double scale =
          alpha / ClipDivisor<S>(chunk.update_sum, chunk.numel, args.clip_threshold);
      return UpdateCoefficients<C>{static_cast<C>(scale), static_cast<C>(args.beta1),
                                   static_cast<C>(1 - args.beta1),
                                   static_cast<C>(args.decay * (args.decay_by_alpha ? alpha : 1))};
    };
    UpdateBlocks<C>(context, args.chunks, prepare,
                    [&](const UpdateCoefficients<C>& c, const FactoredChunk& chunk,
                        const RowBlock& block, int64_t i, int64_t local, C* weight, const C* grad) {
                      const auto moments =
                          MakeMomentCoefficients<C>(chunk, args.grad_scale, args.eps, args.limit);
                      if (chunk.exp_avg != nullptr) {
                        UpdateRow<C, true>(chunk, block, i, local, weight, grad, moments, c);
                      } else {
                        UpdateRow<C, false>(chunk, block, i, local, weight, grad, moments, c);
                      }
                    });
  });
}

}  // namespace apogee::optim::cpu
