// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {
namespace {

template <typename C>
void Run(const DeviceContext& context, const LowRankArgs& args) {
  ForEachUpdate<C>(
      context, args.chunks,
      [&](const UpdateChunk&, int64_t, int64_t n, C* __restrict w, const C* __restrict update) {
        const auto decay_if = [&](DecayKind kind) {
          return static_cast<C>(args.decay_kind == kind ? args.decay * RateOf(args.decay_rate) : 0);
        };
        const C before = decay_if(DecayKind::kBefore), after = decay_if(DecayKind::kAfter);
        const C scale = static_cast<C>(args.scale);
        for (int64_t i = 0; i < n; ++i) {
          const C moved = w[i] - before * w[i] + scale * update[i];
          w[i] = moved - after * moved;
        }
      });
}

}  // namespace

void low_rank_update(const DeviceContext& context, const LowRankArgs& args) {
  args.dtype == DType::kF64 ? Run<double>(context, args) : Run<float>(context, args);
}

}  // namespace apogee::optim::cpu
