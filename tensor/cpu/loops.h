// SPDX-License-Identifier: Apache-2.0

// Helpers of the CPU kernels' loops: conversion between element types, and splitting a loop over
// threads. Private to tensor/cpu.
#ifndef APOGEE_TENSOR_CPU_LOOPS_H_
#define APOGEE_TENSOR_CPU_LOOPS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "apogee/core/device_context.h"
#include "apogee/core/dtype.h"
#include "apogee/core/parallel.h"

namespace apogee::cpu {

// The least number of elements per thread: fewer are not worth starting a thread (about 5 µs).
inline constexpr int64_t kGrain = 16384;

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

// Converts any numeric element type to any other. The 16-bit floats go through float.
template <typename To, typename From>
inline To Cast(From value) {
  if constexpr (kIsHalf<From> && !std::is_same_v<To, From>) {
    return Cast<To>(static_cast<float>(value));
  } else if constexpr (kIsHalf<To> && !std::is_same_v<To, From>) {
    return To(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <typename T>
inline ComputeType<T> Load(T value) {
  return Cast<ComputeType<T>>(value);
}

// The compute type of an op over two element types.
template <typename A, typename B>
using WiderCompute =
    std::conditional_t<std::is_same_v<A, double> || std::is_same_v<B, double>, double, float>;

// Calls fn(begin, end) for ranges of [0, n), on the context's threads. For loops whose elements
// cost about as much as a copy.
template <typename Fn>
void ForElements(const DeviceContext& context, int64_t n, const Fn& fn) {
  ParallelFor(context, n, kGrain, fn);
}

// Calls fn(begin, end) for ranges of rows of `cols` elements, on the context's threads.
template <typename Fn>
void ForRows(const DeviceContext& context, int64_t rows, int64_t cols, const Fn& fn) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols));
  ParallelFor(context, rows, grain, fn);
}

// Sees a tensor as [outer, rows, inner]. Calls fn(o, first, count) for tiles of at most `kTile`
// columns of each outer index, on the context's threads. Tiles are narrower if there would be fewer
// than threads, so a column's result must not depend on its tile.
template <int64_t kTile, typename Fn>
void ForTiles(const DeviceContext& context, int64_t outer, int64_t rows, int64_t inner,
              const Fn& fn) {
  const int64_t share = (inner + context.num_threads() - 1) / context.num_threads();
  const int64_t tile = std::clamp<int64_t>((share + 63) / 64 * 64, 64, kTile);
  const int64_t tiles = (inner + tile - 1) / tile;
  ForRows(context, outer * tiles, rows * std::min(inner, tile), [=](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit % tiles * tile;
      fn(unit / tiles, first, std::min(tile, inner - first));
    }
  });
}

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_LOOPS_H_
