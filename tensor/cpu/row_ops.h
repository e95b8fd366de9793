// Reductions of one row. Four parts of the row are accumulated side by side, because a single vector
// accumulator would wait for the latency of each addition; the order is fixed by n alone.
#ifndef APOGEE_TENSOR_CPU_ROW_OPS_H_
#define APOGEE_TENSOR_CPU_ROW_OPS_H_

#include <cstdint>
#include <limits>

#include "apogee/tensor/cpu/loops.h"

namespace apogee::cpu {

// The sum of term(i) over [0, n), of type C.
template <typename C, typename Fn>
inline C SumOver(int64_t n, const Fn& term) {
  const int64_t quarter = n / 4;
  C a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < quarter; ++i) {
    a += term(i);
    b += term(i + quarter);
    c += term(i + 2 * quarter);
    d += term(i + 3 * quarter);
  }
  for (int64_t i = 4 * quarter; i < n; ++i) a += term(i);
  return (a + b) + (c + d);
}

// The largest element; -infinity for an empty row. NaN elements are passed over: the callers subtract
// the maximum from every element and so meet the NaN again.
template <typename T>
inline ComputeType<T> RowMax(const T* x, int64_t n) {
  using C = ComputeType<T>;
  const int64_t quarter = n / 4;
  C a = -std::numeric_limits<C>::infinity(), b = a, c = a, d = a;
#pragma omp simd reduction(max : a, b, c, d)
  for (int64_t i = 0; i < quarter; ++i) {
    a = std::max(a, Load(x[i]));
    b = std::max(b, Load(x[i + quarter]));
    c = std::max(c, Load(x[i + 2 * quarter]));
    d = std::max(d, Load(x[i + 3 * quarter]));
  }
  for (int64_t i = 4 * quarter; i < n; ++i) a = std::max(a, Load(x[i]));
  return std::max(std::max(a, b), std::max(c, d));
}

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_ROW_OPS_H_
