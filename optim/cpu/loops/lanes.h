// SPDX-License-Identifier: Apache-2.0

// Loops over a row, written once for vectors of a fixed width and for the remaining elements. Sums
// are therefore added in the same order for every instruction set. (The compiler's vectoriser may
// not reorder a sum, so it could not use vectors.) Private to optim/cpu.
//
//   LaneSum<C> sum;
//   ForLanes<C>(n, [&](int64_t j, auto kind) {
//     using V = decltype(kind);                       // a vector of C, or C
//     const V x = Load<V>(row + j);
//     sum.Add(x * x);
//   });
#ifndef APOGEE_OPTIM_CPU_LOOPS_LANES_H_
#define APOGEE_OPTIM_CPU_LOOPS_LANES_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

// All functions here are inlined, so the calling convention for vectors does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace apogee::optim::cpu {

inline constexpr int64_t kLaneBytes = 64;
template <typename C>
struct LaneVector;
template <>
struct LaneVector<float> {
  using Type = float __attribute__((vector_size(kLaneBytes)));
};
template <>
struct LaneVector<double> {
  using Type = double __attribute__((vector_size(kLaneBytes)));
};

template <typename V, typename C>
[[gnu::always_inline]] inline V Load(const C* x) {
  V v;
  std::memcpy(&v, x, sizeof(V));
  return v;
}
template <typename C, typename V>
[[gnu::always_inline]] inline void Store(C* x, const V& v) {
  std::memcpy(x, &v, sizeof(V));
}

// The smaller of x and limit; NaN stays NaN.
template <typename V, typename C>
[[gnu::always_inline]] inline V AtMost(const V& x, C limit) {
#ifdef __AVX512F__
  // One instruction, whose result is its second operand for NaN. The compiler makes two of the
  // expression below. All lanes are chosen: without a mask, g++ warns of its own header.
  if constexpr (sizeof(V) == kLaneBytes && sizeof(C) == 4) {
    return V(_mm512_maskz_min_ps(0xffff, __m512(V{} + limit), __m512(x)));
  }
#endif
  return x > limit ? V{} + limit : x;
}
template <typename V>
[[gnu::always_inline]] inline V Root(const V& x) {
  if constexpr (sizeof(V) < kLaneBytes) {
    return std::sqrt(x);
  } else {
    V y = x;
    for (size_t k = 0; k < sizeof(V) / sizeof(x[0]); ++k) y[k] = std::sqrt(x[k]);
    return y;
  }
}

template <typename C, typename Body>
[[gnu::always_inline]] inline void ForLanes(int64_t n, const Body& body) {
  using V = typename LaneVector<C>::Type;
  constexpr int64_t kLanes = kLaneBytes / sizeof(C);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) body(j, V{});
  for (; j < n; ++j) body(j, C{});
}

template <typename C>
class LaneSum {
 public:
  using V = typename LaneVector<C>::Type;
  [[gnu::always_inline]] void Add(const V& x) { lanes_ += x; }
  [[gnu::always_inline]] void Add(C x) { rest_ += x; }
  C Total() const {
    C total = rest_;
    for (size_t k = 0; k < kLaneBytes / sizeof(C); ++k) total += lanes_[k];
    return total;
  }

 private:
  V lanes_ = {};
  C rest_ = 0;
};

}  // namespace apogee::optim::cpu

#endif  // APOGEE_OPTIM_CPU_LOOPS_LANES_H_
