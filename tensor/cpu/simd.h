// SPDX-License-Identifier: Apache-2.0

// Vectors of the widest registers that the build may use, by the compilers' vector extensions. The
// same source becomes AVX-512, AVX2 or SSE code, for f32 or f64. Private to tensor/cpu.
//
//   Vec<float> x = Load(p);          // kLanes<float> elements, any alignment
//   Store(y, x > 2.0f ? x : x * 0.5f);
#ifndef APOGEE_TENSOR_CPU_SIMD_H_
#define APOGEE_TENSOR_CPU_SIMD_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace apogee::cpu {

#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
inline constexpr int kNumVecRegisters = 32;
#elif defined(__AVX__)
inline constexpr int kVecBytes = 32;
inline constexpr int kNumVecRegisters = 16;
#else
inline constexpr int kVecBytes = 16;
inline constexpr int kNumVecRegisters = 16;
#endif

template <typename T>
struct VecTraits {
  typedef T Type __attribute__((vector_size(kVecBytes)));
};
template <typename T>
using Vec = typename VecTraits<T>::Type;
template <typename T>
inline constexpr int kLanes = kVecBytes / static_cast<int>(sizeof(T));

template <typename T>
inline __attribute__((always_inline)) Vec<T> Load(const T* p) {
  Vec<T> x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
template <typename T>
inline __attribute__((always_inline)) void Store(T* p, Vec<T> x) {
  std::memcpy(p, &x, sizeof(x));
}
// {value, value, ...}. Subtracting zero changes no value, so the compiler drops the subtraction.
template <typename T>
inline __attribute__((always_inline)) Vec<T> Splat(T value) {
  return value - Vec<T>{};
}
// {0, 1, 2, ...}
template <typename T>
inline Vec<T> Iota() {
  return []<int... kLane>(std::integer_sequence<int, kLane...>) {
    return Vec<T>{static_cast<T>(kLane)...};
  }
  (std::make_integer_sequence<int, kLanes<T>>());
}

// 2^x for x <= 127, within 2 ulp, by a polynomial of 2^r for r in [-1/2, 1/2]. 0 for x < -126, so
// that a masked score of -inf has no weight. NaN gives NaN.
inline __attribute__((always_inline)) Vec<float> Exp2(Vec<float> x) {
  typedef int32_t IntVec __attribute__((vector_size(kVecBytes)));
  const Vec<float> clamped = x < -126.0f ? Splat(-126.0f) : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec<float> shifted = clamped + kRound;
  const Vec<float> r = clamped - (shifted - kRound);
  Vec<float> p = r * 1.535336188e-4f + 1.339887440e-3f;
  p = p * r + 9.618437358e-3f;
  p = p * r + 5.550332471e-2f;
  p = p * r + 2.402264791e-1f;
  p = p * r + 6.931472029e-1f;
  p = p * r + 1.0f;
  const IntVec exponent = std::bit_cast<IntVec>(shifted) - (std::bit_cast<int32_t>(kRound) - 127);
  p = p * std::bit_cast<Vec<float>>(exponent << 23);
  return x < -126.0f ? Vec<float>{} : p;
}
inline Vec<double> Exp2(Vec<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = std::exp2(x[i]);
  return x;
}

namespace internal {

// Swaps the off-diagonal kStep × kStep blocks of every 2 kStep × 2 kStep block.
template <typename T, int kStep>
inline __attribute__((always_inline)) void TransposeStep(Vec<T>* rows) {
  [&]<int... kLane>(std::integer_sequence<int, kLane...>) {
    constexpr int kCount = kLanes<T>;
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      if ((i & kStep) != 0) continue;
      const Vec<T> a = rows[i], b = rows[i + kStep];
      rows[i] =
          __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kCount + kLane - kStep : kLane)...);
      rows[i + kStep] =
          __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kCount + kLane : kLane + kStep)...);
    }
  }
  (std::make_integer_sequence<int, kLanes<T>>());
  if constexpr (2 * kStep < kLanes<T>) TransposeStep<T, 2 * kStep>(rows);
}

}  // namespace internal

// y[j, i] = x[i, j] for i < rows, j < cols, both multiples of kLanes<T>.
template <typename T>
void Transpose(const T* x, int64_t x_ld, int64_t rows, int64_t cols, T* y, int64_t y_ld) {
  for (int64_t i = 0; i < rows; i += kLanes<T>) {
    for (int64_t j = 0; j < cols; j += kLanes<T>) {
      Vec<T> tile[kLanes<T>];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes<T>; ++r) tile[r] = Load(x + (i + r) * x_ld + j);
      internal::TransposeStep<T, 1>(tile);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes<T>; ++r) Store(y + (j + r) * y_ld + i, tile[r]);
    }
  }
}

// The sums of the elements of kLanes<T> vectors, that of x[i] in lane i. Changes x.
template <typename T>
inline __attribute__((always_inline)) Vec<T> SumsOf(Vec<T>* x) {
  internal::TransposeStep<T, 1>(x);
#pragma GCC unroll 4
  for (int step = 1; step < kLanes<T>; step *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kLanes<T>; i += 2 * step) x[i] += x[i + step];
  }
  return x[0];
}

// Two bf16 in one word, the first in the low half. A product multiplies pairs and adds both results
// to one f32, at twice the rate of f32.
using Bf16Pair = uint32_t;
#ifdef __AVX512BF16__
inline constexpr bool kHasBf16Dot = true;
#else
inline constexpr bool kHasBf16Dot = false;
#endif
// The number of elements of the contracted dim in one E.
template <typename E>
inline constexpr int64_t kPack = std::is_same_v<E, Bf16Pair> ? 2 : 1;
// The type of sums of products of E.
template <typename E>
using Sum = std::conditional_t<std::is_same_v<E, Bf16Pair>, float, E>;

// MultiplyAdd is sum + a * b. StoreRow stores sums as elements along a row. StoreColumns stores
// kPack<E> rows so that the elements of a column are side by side.
template <typename E>
struct Packing {
  static inline __attribute__((always_inline)) Vec<E> MultiplyAdd(Vec<E> sum, Vec<E> a, Vec<E> b) {
    return sum + a * b;
  }
  static inline __attribute__((always_inline)) void StoreRow(E* y, Vec<E> row) { Store(y, row); }
  static inline __attribute__((always_inline)) void StoreColumns(E* y, const Vec<E>* rows) {
    Store(y, rows[0]);
  }
};

#ifdef __AVX512BF16__
template <>
struct Packing<Bf16Pair> {
  static inline __attribute__((always_inline)) Vec<float> MultiplyAdd(Vec<float> sum,
                                                                      Vec<Bf16Pair> a,
                                                                      Vec<Bf16Pair> b) {
    return _mm512_dpbf16_ps(sum, std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b));
  }
  static inline __attribute__((always_inline)) void StoreRow(Bf16Pair* y, Vec<float> row) {
    const __m256bh rounded = _mm512_cvtneps_pbh(row);
    std::memcpy(y, &rounded, sizeof(rounded));
  }
  static inline __attribute__((always_inline)) void StoreColumns(Bf16Pair* y,
                                                                 const Vec<float>* rows) {
    typedef uint16_t Halves __attribute__((vector_size(kVecBytes)));
    const auto halves = std::bit_cast<Halves>(_mm512_cvtne2ps_pbh(rows[1], rows[0]));
    [&]<int... kPair>(std::integer_sequence<int, kPair...>) {
      const Halves pairs = __builtin_shufflevector(
          halves, halves, (kPair % 2 == 0 ? kPair / 2 : kLanes<float> + kPair / 2)...);
      std::memcpy(y, &pairs, sizeof(pairs));
    }
    (std::make_integer_sequence<int, 2 * kLanes<float>>());
  }
};
#endif

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_SIMD_H_
