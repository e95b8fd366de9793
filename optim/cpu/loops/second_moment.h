// SPDX-License-Identifier: Apache-2.0

// Shared by Adafactor and CAME: the normalised gradient of a row of a block. AdaLomo uses the
// divisor. Private to optim/cpu.
#ifndef APOGEE_OPTIM_CPU_LOOPS_SECOND_MOMENT_H_
#define APOGEE_OPTIM_CPU_LOOPS_SECOND_MOMENT_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "apogee/optim/cpu/loops/block_loop.h"
#include "apogee/optim/cpu/loops/lanes.h"

namespace apogee::optim::cpu {

// The divisor of an update: max(1, rms(u) / threshold); NaN stays NaN.
template <typename S>
double ClipDivisor(const void* update_sum, int64_t numel, double threshold) {
  const double sum = static_cast<double>(*static_cast<const S*>(update_sum));
  const double ratio = std::sqrt(sum / static_cast<double>(numel)) / threshold;
  return ratio < 1 ? 1 : ratio;
}

template <typename C>
struct MomentCoefficients {
  C grad_scale, beta2, one_minus_beta2, eps, limit;
};
template <typename C>
MomentCoefficients<C> MakeMomentCoefficients(const FactoredChunk& chunk, double grad_scale,
                                             double eps, double limit) {
  const double largest = static_cast<double>(std::numeric_limits<C>::max());
  return {static_cast<C>(grad_scale), static_cast<C>(chunk.beta2), static_cast<C>(1 - chunk.beta2),
          static_cast<C>(eps), static_cast<C>(std::min(limit, largest))};
}

// Calls body(j, kind, u) with the normalised gradient of the row's columns (u of
// AdafactorUpdateSumArgs). With kStore, stores the new second moment of a chunk that is not
// factored.
template <bool kStore, typename C, typename Body>
[[gnu::always_inline]] inline void ForNormalized(const FactoredChunk& chunk, const RowBlock& block,
                                                 int64_t i, int64_t local, const C* __restrict grad,
                                                 const MomentCoefficients<C> c, const Body& body) {
  if (chunk.rows > 0) {
    const C* factors = static_cast<const C*>(chunk.factors);
    const C row = factors[block.row + i];
    const C* __restrict column = factors + chunk.rows + block.column;
    const auto run = [&](auto scaled) __attribute__((always_inline)) {
      ForLanes<C>(
          block.cols, [&](int64_t j, auto kind) __attribute__((always_inline)) {
            using V = decltype(kind);
            const V factor = AtMost<V>(row * Load<V>(column + j), c.limit);
            V g = Load<V>(grad + j);
            if constexpr (scaled) g *= c.grad_scale;
            body(j, kind, V(g * factor));
          });
    };
    // Multiplying by 1 changes no bit.
    c.grad_scale == 1 ? run(std::false_type()) : run(std::true_type());
  } else {
    C* __restrict moment = static_cast<C*>(chunk.exp_avg_sq) + local;
    ForLanes<C>(
        block.cols, [&](int64_t j, auto kind) __attribute__((always_inline)) {
          using V = decltype(kind);
          const V g = c.grad_scale * Load<V>(grad + j);
          const V v = c.beta2 * Load<V>(moment + j) + c.one_minus_beta2 * (g * g + c.eps);
          if constexpr (kStore) Store(moment + j, v);
          body(j, kind, V(g * AtMost<V>(C{1} / Root(v), c.limit)));
        });
  }
}

}  // namespace apogee::optim::cpu

#endif  // APOGEE_OPTIM_CPU_LOOPS_SECOND_MOMENT_H_
