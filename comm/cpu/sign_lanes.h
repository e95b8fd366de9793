// SPDX-License-Identifier: Apache-2.0

// Vectors of eight elements, because a byte holds eight sign bits. Private to comm/cpu.
//
//   using V = Lanes<float>;
//   V x = LoadLanes<float>(values, count);      // elements from `count` on are 0
//   uint8_t signs = SignBits<float>(x);
//   V y = SignedLanes<float>(signs, scale);     // +-scale
#ifndef APOGEE_COMM_CPU_SIGN_LANES_H_
#define APOGEE_COMM_CPU_SIGN_LANES_H_

#include <cstdint>
#include <cstring>
#if defined(__AVX__)
#include <immintrin.h>
#endif

// All functions here are inlined, so the ABI of passing vectors does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace apogee::comm::cpu {

// Mask: the result of comparing lanes; in each lane all bits are set or none.
template <typename C>
struct LanesOf;
template <>
struct LanesOf<float> {
  using Type = float __attribute__((vector_size(32)));
  using Element = int32_t;
  using Mask = int32_t __attribute__((vector_size(32)));
};
template <>
struct LanesOf<double> {
  using Type = double __attribute__((vector_size(64)));
  using Element = int64_t;
  using Mask = int64_t __attribute__((vector_size(64)));
};
template <typename C>
using Lanes = typename LanesOf<C>::Type;
template <typename C>
using MaskLanes = typename LanesOf<C>::Mask;
using DoubleLanes = Lanes<double>;

// Converts between f64 and a 16-bit format through f32.
template <typename To, typename From>
[[gnu::always_inline]] inline To ConvertLane(From x) {
  if constexpr (sizeof(To) == 2 || sizeof(From) == 2) {
    return static_cast<To>(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

template <typename C, typename T>
[[gnu::always_inline]] inline Lanes<C> LoadLanes(const T* x, int64_t count) {
  Lanes<C> lanes{};
  if (count >= 8) {
    if constexpr (sizeof(T) == sizeof(C)) {
      std::memcpy(&lanes, x, sizeof(lanes));
    } else {
      for (int k = 0; k < 8; ++k) lanes[k] = ConvertLane<C>(x[k]);
    }
    return lanes;
  }
  for (int64_t k = 0; k < count; ++k) lanes[k] = ConvertLane<C>(x[k]);
  return lanes;
}

template <typename C, typename T>
[[gnu::always_inline]] inline void StoreLanes(T* x, const Lanes<C>& lanes, int64_t count) {
  if constexpr (sizeof(T) == sizeof(C)) {
    if (count >= 8) {
      std::memcpy(x, &lanes, sizeof(lanes));
      return;
    }
  }
  for (int64_t k = 0; k < (count < 8 ? count : 8); ++k) x[k] = ConvertLane<T>(lanes[k]);
}

// Bit k is 1 if lanes[k] >= 0. NaN gives 0.
template <typename C>
[[gnu::always_inline]] inline uint8_t SignBits(const Lanes<C>& lanes) {
#if defined(__AVX__)
  if constexpr (sizeof(C) == 4) {
    const __m256 x = (__m256)lanes;
    return static_cast<uint8_t>(
        _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GE_OQ)));
  }
#endif
  unsigned bits = 0;
  // The table and not 1u << k: g++ 12 with -fsanitize=shift takes every comparison there for true.
  constexpr unsigned kBits[] = {1, 2, 4, 8, 16, 32, 64, 128};
  for (int k = 0; k < 8; ++k) bits |= lanes[k] >= 0 ? kBits[k] : 0u;
  return static_cast<uint8_t>(bits);
}

template <typename C>
[[gnu::always_inline]] inline MaskLanes<C> ExpandBits(uint8_t bits) {
  constexpr MaskLanes<C> kBits = {1, 2, 4, 8, 16, 32, 64, 128};
  return (kBits & static_cast<typename LanesOf<C>::Element>(bits)) != 0;
}

// The lanes whose bit is 1; 0 in the others.
template <typename C>
[[gnu::always_inline]] inline Lanes<C> OnlyLive(const Lanes<C>& lanes, uint8_t bits) {
  return (Lanes<C>)((MaskLanes<C>)lanes & ExpandBits<C>(bits));
}

template <typename C>
[[gnu::always_inline]] inline Lanes<C> SignedLanes(uint8_t bits, C scale) {
  const Lanes<C> plus = Lanes<C>{} + scale;
  return ExpandBits<C>(bits) ? plus : -plus;
}

// The same, from lanes whose sign bits nothing else needs.
template <typename C>
[[gnu::always_inline]] inline Lanes<C> SignedLanes(const Lanes<C>& lanes, C scale) {
  const Lanes<C> plus = Lanes<C>{} + scale;
  return lanes >= 0 ? plus : -plus;
}

template <typename C>
[[gnu::always_inline]] inline DoubleLanes Squares(const Lanes<C>& lanes) {
  const DoubleLanes x = __builtin_convertvector(lanes, DoubleLanes);
  return x * x;
}

}  // namespace apogee::comm::cpu

#endif  // APOGEE_COMM_CPU_SIGN_LANES_H_
