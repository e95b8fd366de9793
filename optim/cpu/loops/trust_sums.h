// SPDX-License-Identifier: Apache-2.0

// The statistics of LAMB and LARS: sums of squares of the weights and of the update. They are
// computed over blocks of fixed size, whose sums are added in order. Private to optim/cpu.
#ifndef APOGEE_OPTIM_CPU_LOOPS_TRUST_SUMS_H_
#define APOGEE_OPTIM_CPU_LOOPS_TRUST_SUMS_H_

#include <cmath>
#include <vector>

#include "apogee/optim/cpu/loops/block_loop.h"
#include "apogee/optim/cpu/loops/lanes.h"

namespace apogee::optim::cpu {

struct TrustSums {
  double weight = 0;
  double update = 0;
};

// loop(chunk, begin, n, weights, gradient) returns the sums over n <= kStageBlock elements. The
// totals are added to the chunks' `sums`.
template <typename C, typename S, typename Chunk, typename Loop>
void AddTrustSums(const DeviceContext& context, std::span<const Chunk> chunks, const Loop& loop) {
  constexpr int64_t kBlock = 64 * kStageBlock;
  struct Block {
    const Chunk* chunk;
    int64_t begin, n;
    TrustSums sums;
  };
  std::vector<Block> blocks;
  for (const Chunk& chunk : chunks) {
    for (int64_t begin = 0; begin < chunk.n; begin += kBlock) {
      blocks.push_back({&chunk, begin, std::min(kBlock, chunk.n - begin), {}});
    }
  }
  ParallelFor(context, static_cast<int64_t>(blocks.size()), 1, [&](int64_t first, int64_t last) {
    alignas(64) C stage[kStageBlock];
    for (int64_t k = first; k < last; ++k) {
      Block& block = blocks[static_cast<size_t>(k)];
      const Chunk& chunk = *block.chunk;
      const bool staged = chunk.grad_dtype != DTypeOf<C>();
      for (int64_t b = block.begin; b < block.begin + block.n; b += kStageBlock) {
        const int64_t n = std::min(kStageBlock, block.begin + block.n - b);
        if (staged) LoadBlock(chunk.grad, chunk.grad_dtype, b, n, stage);
        const C* grad = staged ? stage : static_cast<const C*>(chunk.grad) + b;
        const TrustSums sums = loop(chunk, b, n, static_cast<const C*>(chunk.weight) + b, grad);
        block.sums.weight += sums.weight;
        block.sums.update += sums.update;
      }
    }
  });
  for (size_t k = 0; k < blocks.size();) {
    const Chunk& chunk = *blocks[k].chunk;
    TrustSums total;
    for (; k < blocks.size() && blocks[k].chunk == &chunk; ++k) {
      total.weight += blocks[k].sums.weight;
      total.update += blocks[k].sums.update;
    }
    S* sums = static_cast<S*>(chunk.sums);
    sums[0] += static_cast<S>(total.weight);
    sums[1] += static_cast<S>(total.update);
  }
}

// The two norms of a parameter, from its totals.
template <typename S>
TrustSums TrustNorms(const TrustChunk& chunk) {
  const S* sums = static_cast<const S*>(chunk.sums);
  return {std::sqrt(static_cast<double>(sums[0])), std::sqrt(static_cast<double>(sums[1]))};
}

}  // namespace apogee::optim::cpu

#endif  // APOGEE_OPTIM_CPU_LOOPS_TRUST_SUMS_H_
