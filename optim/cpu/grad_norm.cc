// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <vector>

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {
namespace {

// Lanes are written out, because the compiler's vectoriser may not reorder a sum. The order of
// additions, and so every bit, is the same for all instruction sets and thread counts.
constexpr int kLanes = 8;
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));
// Unaligned loads of kLanes elements.
using FloatLanes = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));
using DoubleLanes = double __attribute__((vector_size(kLanes * sizeof(double)), aligned(8)));
inline void LoadLanes(const float* x, Lanes& lanes) {
  lanes = __builtin_convertvector(*reinterpret_cast<const FloatLanes*>(x), Lanes);
}
inline void LoadLanes(const double* x, Lanes& lanes) {
  lanes = *reinterpret_cast<const DoubleLanes*>(x);
}

template <NormKind kKind>
inline void Accumulate(Lanes& sum, const Lanes& x) {
  if constexpr (kKind == NormKind::kL2) {
    sum += x * x;
  } else {
    const Lanes magnitude = x < 0 ? -x : x;
    if constexpr (kKind == NormKind::kL1) {
      sum += magnitude;
    } else {
      sum = magnitude > sum || magnitude != magnitude ? magnitude : sum;  // NaN stays
    }
  }
}

template <NormKind kKind>
double Combine(double a, double b) {
  if constexpr (kKind != NormKind::kMax) return a + b;
  return b > a || b != b ? b : a;
}

template <NormKind kKind, typename C>
double NormOf(const C* x, int64_t n) {
  constexpr int kAccumulators = 4;
  Lanes sums[kAccumulators] = {};
  int64_t i = 0;
  for (; i + kLanes * kAccumulators <= n; i += kLanes * kAccumulators) {
    for (int a = 0; a < kAccumulators; ++a) {
      Lanes lanes;
      LoadLanes(x + i + a * kLanes, lanes);
      Accumulate<kKind>(sums[a], lanes);
    }
  }
  for (int a = 0; i < n; i += kLanes, ++a) {
    Lanes rest = {};
    for (int lane = 0; lane < kLanes && i + lane < n; ++lane) {
      rest[lane] = static_cast<double>(x[i + lane]);
    }
    Accumulate<kKind>(sums[a], rest);
  }
  double total = 0;
  for (const Lanes& sum : sums) {
    for (int lane = 0; lane < kLanes; ++lane) total = Combine<kKind>(total, sum[lane]);
  }
  return total;
}

template <NormKind kKind>
double BlockNorm(const NormChunk& chunk, int64_t begin, int64_t n) {
  if (chunk.grad_dtype == DType::kF64) {
    return NormOf<kKind>(static_cast<const double*>(chunk.grad) + begin, n);
  }
  if (chunk.grad_dtype == DType::kF32) {
    return NormOf<kKind>(static_cast<const float*>(chunk.grad) + begin, n);
  }
  alignas(64) float stage[kStageBlock];
  double total = 0;
  for (int64_t b = begin; b < begin + n; b += kStageBlock) {
    const int64_t count = std::min(kStageBlock, begin + n - b);
    LoadBlock(chunk.grad, chunk.grad_dtype, b, count, stage);
    total = Combine<kKind>(total, NormOf<kKind>(stage, count));
  }
  return total;
}

template <NormKind kKind>
void Run(const DeviceContext& context, const NormArgs& args) {
  constexpr int64_t kBlock = 1 << 16;
  struct Block {
    NormChunk* chunk;
    int64_t begin;
    double partial;
  };
  std::vector<Block> blocks;
  int64_t total = 0;
  for (NormChunk& chunk : args.chunks) {
    chunk.result = 0;
    total += chunk.n;
    for (int64_t begin = 0; begin < chunk.n; begin += kBlock) blocks.push_back({&chunk, begin, 0});
  }
  const auto num_blocks = static_cast<int64_t>(blocks.size());
  const int64_t grain =
      total < kBlock ? num_blocks : 1;  // starting threads costs more than a small sum
  ParallelFor(context, num_blocks, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      Block& block = blocks[static_cast<size_t>(i)];
      const int64_t n = std::min(kBlock, block.chunk->n - block.begin);
      block.partial = BlockNorm<kKind>(*block.chunk, block.begin, n);
    }
  });
  for (const Block& block : blocks) {
    block.chunk->result = Combine<kKind>(block.chunk->result, block.partial);
  }
}

}  // namespace

void grad_norm(const DeviceContext& context, const NormArgs& args) {
  switch (args.kind) {
    case NormKind::kL2:
      return Run<NormKind::kL2>(context, args);
    case NormKind::kL1:
      return Run<NormKind::kL1>(context, args);
    case NormKind::kMax:
      return Run<NormKind::kMax>(context, args);
  }
}

void square_sums(const DeviceContext& context, const SquareSumArgs& args) {
  std::vector<NormChunk> chunks;
  for (const SquareSumChunk& chunk : args.chunks) {
    chunks.push_back({chunk.grad, chunk.grad_dtype, chunk.n, 0});
  }
  Run<NormKind::kL2>(context, {NormKind::kL2, chunks});
  for (size_t i = 0; i < chunks.size(); ++i) {
    const double sum = chunks[i].result;
    if (args.stat_dtype == DType::kF64) {
      *static_cast<double*>(args.chunks[i].sum) = sum;
    } else {
      *static_cast<float*>(args.chunks[i].sum) = static_cast<float>(sum);
    }
  }
}

}  // namespace apogee::optim::cpu
