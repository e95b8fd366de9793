// Reductions of one row. Element i goes to lane i % 64, and the lanes are added as a tree: the order
// depends on nothing but the length, and several vector accumulators hide the latency of an addition.
//
//   C dot = SumOver<C>(cols, [=](int64_t i) { return Load(a[i]) * Load(b[i]); });
#ifndef APOGEE_TENSOR_CPU_ROW_OPS_H_
#define APOGEE_TENSOR_CPU_ROW_OPS_H_

#include <cstdint>
#include <limits>

#include "apogee/tensor/cpu/loops.h"

namespace apogee::cpu {

inline constexpr int64_t kLanes = 64;

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
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width; ++l) lanes[l] = combine(lanes[l], lanes[l + width]);
  }
  return lanes[0];
}

// The sum of term(i) over [0, n). term may also store element i of an output.
template <typename C, typename Term>
inline C SumOver(int64_t n, const Term& term) {
  return ReduceOver(n, C(0), term, [](C a, C b) { return a + b; });
}

// The largest element; -infinity for an empty row. NaN elements are passed over: the callers subtract
// the maximum from every element and so meet the NaN again.
template <typename T>
inline ComputeType<T> RowMax(const T* x, int64_t n) {
  using C = ComputeType<T>;
  return ReduceOver(
      n, -std::numeric_limits<C>::infinity(), [=](int64_t i) { return Load(x[i]); },
      [](C a, C b) { return b > a ? b : a; });
}

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_ROW_OPS_H_
