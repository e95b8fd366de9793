// SPDX-License-Identifier: Apache-2.0

// Reductions of one row. Element i is added to lane i % 64, and the lanes are added as a tree. So
// the order depends only on the length, and several vector accumulators hide the latency of an
// addition. Private to tensor/cpu.
//
//   C dot = SumOver<C>(cols, [=](int64_t i) { return Load(a[i]) * Load(b[i]); });
#ifndef APOGEE_TENSOR_CPU_ROW_OPS_H_
#define APOGEE_TENSOR_CPU_ROW_OPS_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/vec_math.h"

namespace apogee::cpu {

inline constexpr int64_t kLanes = 64;

// Combines n lanes as a tree, in registers: a loop over halves would store and load every level.
template <int n, typename C, typename Combine>
inline C Tree(const C* lanes, const Combine& combine) {
  if constexpr (n == 1) {
    return lanes[0];
  } else {
    return combine(Tree<n / 2>(lanes, combine), Tree<n / 2>(lanes + n / 2, combine));
  }
}

template <typename C, typename Term, typename Combine>
inline C ReduceOver(int64_t n, C initial, const Term& term, const Combine& combine) {
  C lanes[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) lanes[l] = initial;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC ivdep
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = combine(lanes[l], term(i + l));
  }
  for (int64_t l = 0; l < n - i; ++l) lanes[l] = combine(lanes[l], term(i + l));
  constexpr int64_t kQuarter = kLanes / 4;
  C quarter[kQuarter];
  for (int64_t l = 0; l < kQuarter; ++l) {
    quarter[l] = combine(combine(lanes[l], lanes[l + kQuarter]),
                         combine(lanes[l + 2 * kQuarter], lanes[l + 3 * kQuarter]));
  }
  return Tree<kQuarter>(quarter, combine);
}

// The sum of term(i) for i in [0, n). term may also store element i of an output.
template <typename C, typename Term>
inline C SumOver(int64_t n, const Term& term) {
  return ReduceOver(n, C(0), term, [](C a, C b) { return a + b; });
}

// Two sums in one pass: term(i, a, b) adds element i's terms to a and b.
template <typename C>
struct TwoSums {
  C first, second;
};
template <typename C, typename Term>
inline TwoSums<C> SumTwoOver(int64_t n, const Term& term) {
  constexpr int64_t kHalf = kLanes / 2;
  constexpr int64_t kQuarter = kLanes / 4;
  const auto add = [](C a, C b) { return a + b; };
  C a[kHalf] = {};
  C b[kHalf] = {};
  int64_t i = 0;
  for (; i + kHalf <= n; i += kHalf) {
#pragma GCC ivdep
    for (int64_t l = 0; l < kHalf; ++l) term(i + l, a[l], b[l]);
  }
  for (int64_t l = 0; l < n - i; ++l) term(i + l, a[l], b[l]);
  for (int64_t l = 0; l < kQuarter; ++l) a[l] += a[l + kQuarter];
  for (int64_t l = 0; l < kQuarter; ++l) b[l] += b[l + kQuarter];
  return {Tree<kQuarter>(a, add), Tree<kQuarter>(b, add)};
}

// The largest element; -infinity for an empty row. NaN elements are ignored: the callers subtract
// the maximum from every element, so a NaN still reaches the result.
template <typename T>
inline ComputeType<T> RowMax(const T* x, int64_t n) {
  using C = ComputeType<T>;
  return ReduceOver(
      n, -std::numeric_limits<C>::infinity(), [=](int64_t i) { return Load(x[i]); },
      [](C a, C b) { return b > a ? b : a; });
}

// log(sum(exp(x))) of one row, which is read from memory once, in chunks that stay in the L1 cache.
// Keeps a running maximum, and a sum that is rescaled when the maximum grows. shift_of(max) is
// subtracted before exp: the maximum, or another number where that is infinite.
template <typename T, typename ShiftOf>
inline ComputeType<T> LogSumExp(const T* x, int64_t n, const ShiftOf& shift_of) {
  using C = ComputeType<T>;
  constexpr int64_t kChunk = 4096;
  C max = -std::numeric_limits<C>::infinity();
  C shift = 0, sum = 0;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const T* chunk = x + begin;
    const int64_t count = std::min(kChunk, n - begin);
    max = std::max(max, RowMax(chunk, count));
    const C next = shift_of(max);
    if (sum != 0) sum *= FastExp(shift - next);
    shift = next;
    sum += SumOver<C>(count, [=](int64_t i) { return FastExp(Load(chunk[i]) - next); });
  }
  return shift + std::log(sum);
}

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_ROW_OPS_H_
