// SPDX-License-Identifier: Apache-2.0

// Loops over chunks for the CPU kernels. The elements of all chunks form one range, which is split
// over the threads. Gradients and working weights of another dtype are converted through a block
// that stays in the L1 cache, so each kernel has a single loop per compute type. Private to
// optim/cpu.
#ifndef APOGEE_OPTIM_CPU_LOOPS_CHUNK_LOOP_H_
#define APOGEE_OPTIM_CPU_LOOPS_CHUNK_LOOP_H_

#include <algorithm>
#include <cmath>
#include <span>

#include "apogee/core/parallel.h"
#include "apogee/optim/core/update_chunk.h"

namespace apogee::optim::cpu {

// Elements per staged block: few enough for the four f32 tensors of Adam to stay in the L1 cache.
inline constexpr int64_t kStageBlock = 1024;

// y = cast(x). Between f64 and a 16-bit format, converts through f32.
template <typename From, typename To>
void ConvertRange(const From* __restrict x, To* __restrict y, int64_t n) {
  constexpr bool kThroughFloat = sizeof(From) == 2 || sizeof(To) == 2;
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (kThroughFloat) {
      y[i] = static_cast<To>(static_cast<float>(x[i]));
    } else {
      y[i] = static_cast<To>(x[i]);
    }
  }
}

template <typename C>
void LoadBlock(const void* x, DType dtype, int64_t begin, int64_t n, C* y) {
  DispatchFloat(dtype, "optimizer gradient",
                [&]<typename T>() { ConvertRange(static_cast<const T*>(x) + begin, y, n); });
}

template <typename C>
void StoreBlock(const C* x, void* y, DType dtype, int64_t begin, int64_t n) {
  DispatchFloat(dtype, "optimizer weight",
                [&]<typename T>() { ConvertRange(x, static_cast<T*>(y) + begin, n); });
}

inline double RateOf(const SizedRate& rate) {
  if (rate.weight_sum == nullptr) return rate.rate;
  const double sum = rate.stat_dtype == DType::kF64
                         ? *static_cast<const double*>(rate.weight_sum)
                         : static_cast<double>(*static_cast<const float*>(rate.weight_sum));
  const double rms = std::sqrt(sum / static_cast<double>(rate.numel));
  return rate.rate * (rms < rate.floor ? rate.floor : rms);
}

// Calls fn(chunk, begin, count) so that every element of every chunk is in exactly one call. The
// result for an element must not depend on how the ranges are cut.
template <typename Chunk, typename Fn>
void ForEachRange(const DeviceContext& context, std::span<Chunk> chunks, const Fn& fn) {
  int64_t total = 0;
  for (const Chunk& chunk : chunks) total += chunk.n;
  ParallelFor(context, total, 1 << 15, [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (Chunk& chunk : chunks) {
      const int64_t from = std::max(begin, first) - first;
      const int64_t to = std::min(end, first + chunk.n) - first;
      if (from < to) fn(chunk, from, to - from);
      first += chunk.n;
      if (first >= end) break;
    }
  });
}

// Calls loop(chunk, begin, count, weight, grad) with typed pointers to element `begin` of the
// chunk's weights and gradients. Then stores the working weights.
template <typename C, typename Chunk, typename Loop>
void ForEachUpdate(const DeviceContext& context, std::span<const Chunk> chunks, const Loop& loop) {
  ForEachRange(context, chunks, [&](const Chunk& chunk, int64_t begin, int64_t count) {
    C* weight = static_cast<C*>(chunk.weight);
    const C* grad = static_cast<const C*>(chunk.grad);
    const bool staged_grad = chunk.grad_dtype != DTypeOf<C>();
    if (!staged_grad && chunk.working == nullptr) {
      loop(chunk, begin, count, weight + begin, grad + begin);
      return;
    }
    alignas(64) C stage[kStageBlock];
    for (int64_t b = begin; b < begin + count; b += kStageBlock) {
      const int64_t n = std::min(kStageBlock, begin + count - b);
      if (staged_grad) LoadBlock(chunk.grad, chunk.grad_dtype, b, n, stage);
      loop(chunk, b, n, weight + b, staged_grad ? stage : grad + b);
      if (chunk.working != nullptr) {
        StoreBlock(weight + b, chunk.working, chunk.working_dtype, b, n);
      }
    }
  });
}

}  // namespace apogee::optim::cpu

#endif  // APOGEE_OPTIM_CPU_LOOPS_CHUNK_LOOP_H_
