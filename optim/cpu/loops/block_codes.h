// SPDX-License-Identifier: Apache-2.0

// Decodes and encodes pieces of blocks of 8-bit codes. Private to optim/cpu.
#ifndef APOGEE_OPTIM_CPU_LOOPS_BLOCK_CODES_H_
#define APOGEE_OPTIM_CPU_LOOPS_BLOCK_CODES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "apogee/optim/cpu/loops/code_lanes.h"

namespace apogee::optim::cpu {

// The most elements of a piece: the largest block fits. With the default block, two decoded f32
// moments and a gradient stay in the L1 cache.
inline constexpr int64_t kMaxPiece = 4096;

// Cuts elements [first, first + n) of a tensor into pieces: one per block of `block` elements, or
// pieces of 2048 elements if `block` is 0 (one block). ForEach calls fn(begin, count, block index)
// for pieces number [from, to); `begin` counts from `first`.
struct Pieces {
  Pieces(int64_t first, int64_t n, int64_t block) : first_(first), n_(n), block_(block) {}
  int64_t step() const { return block_ == 0 ? int64_t{2048} : block_; }
  int64_t count() const { return n_ == 0 ? 0 : (first_ + n_ - 1) / step() - first_ / step() + 1; }
  template <typename Fn>
  void ForEach(int64_t from, int64_t to, const Fn& fn) const {
    for (int64_t p = from; p < to; ++p) {
      const int64_t k = first_ / step() + p;
      const int64_t begin = std::max(first_, k * step());
      const int64_t end = std::min(first_ + n_, (k + 1) * step());
      fn(begin - first_, end - begin, block_ == 0 ? int64_t{0} : k);
    }
  }

 private:
  int64_t first_, n_, block_;
};

// Codes are decoded and encoded in groups. With code_lanes.h, the values of a group stay in
// registers.
inline constexpr int64_t kGroup = 64;
// Calls fn(begin, count) for groups of [0, n). `count` is the constant kGroup for all but the last.
template <typename Fn>
[[gnu::always_inline]] inline void ForEachGroup(int64_t n, const Fn& fn) {
  int64_t begin = 0;
  for (; begin + kGroup <= n; begin += kGroup) fn(begin, std::integral_constant<int64_t, kGroup>());
  if (begin < n) fn(begin, n - begin);
}

// Count: int64_t, or for a whole group the type of the constant kGroup.
template <bool kSigned, typename C, typename Count>
[[gnu::always_inline]] inline void DecodeGroup(const CodeMap& map, const uint8_t* __restrict codes,
                                               C scale, Count count, C* __restrict values) {
#ifdef APOGEE_CODE_LANES
  if constexpr (!std::is_same_v<Count, int64_t>) {
    alignas(64) float decoded[kGroup];
    DecodeLanes<kSigned>(map, codes, decoded);
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<C>(decoded[i]) * scale;
    return;
  }
#endif
  const float* __restrict table = map.values();
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<C>(table[codes[i]]) * scale;
}

// The largest magnitude; NaN counts as the largest. Compares bit patterns, which have the order of
// the magnitudes: the compiler may vectorise a maximum of integers, but not one of floating-point
// numbers.
template <typename C>
C AbsMax(const C* x, int64_t n) {
  using Bits = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;
  constexpr Bits kMask = static_cast<Bits>(~(Bits{1} << (8 * sizeof(C) - 1)));
  Bits largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Bits bits = std::bit_cast<Bits>(x[i]) & kMask;
    largest = bits > largest ? bits : largest;
  }
  return std::bit_cast<C>(largest);
}

// Encodes values / absmax of one block. Magnitudes are at most absmax.
template <bool kSigned, typename C>
class BlockEncoder {
 public:
  BlockEncoder(const CodeMap& map, C absmax, bool keep_sign)
      : map_(map),
        keep_sign_(keep_sign),
        zero_(absmax == 0),
        // False for NaN.
        ordinary_(absmax >= C(1e-30) && absmax <= C(1e30)),
        // If 1 / absmax could overflow, both are scaled by a power of two.
        lift_(absmax < C(1e-30) ? C(0x1p100) : C(1)),
        inverse_(1 / (absmax * lift_)),
        scale_(map.lines().stretch *
               (std::is_same_v<C, float> ? static_cast<float>(inverse_) : 1)) {}

  template <typename Count>
  [[gnu::always_inline]] void Encode(const C* __restrict values, Count count,
                                     uint8_t* __restrict codes) const {
    if (zero_) {
      std::fill_n(codes, int64_t{count}, static_cast<uint8_t>(kSigned ? 127 : 0));
      return;
    }
#ifdef APOGEE_CODE_LANES
    if constexpr (!std::is_same_v<Count, int64_t>) {
      ordinary_ ? EncodeOrdinary(values, codes) : EncodeGroup(values, codes);
      return;
    }
#endif
    EncodeAny(values, count, codes);
  }

 private:
#ifdef APOGEE_CODE_LANES
  [[gnu::always_inline]] void EncodeOrdinary(const C* __restrict values,
                                             uint8_t* __restrict codes) const {
    uint64_t doubtful;
    if constexpr (std::is_same_v<C, float>) {
      doubtful = EncodeLanes<kSigned>(map_, values, scale_, keep_sign_, codes);
    } else {
      alignas(64) float ratios[kGroup];
      for (int64_t i = 0; i < kGroup; ++i) ratios[i] = static_cast<float>(values[i] * inverse_);
      doubtful = EncodeLanes<kSigned>(map_, ratios, scale_, keep_sign_, codes);
    }
    if (doubtful != 0) [[unlikely]]
      EncodeDoubtful(values, doubtful, codes);
  }
  // Neither this nor the next function is inlined, because that would take registers from
  // EncodeLanes.
  [[gnu::noinline, gnu::cold]] void EncodeDoubtful(const C* values, uint64_t doubtful,
                                                   uint8_t* codes) const {
    for (; doubtful != 0; doubtful &= doubtful - 1) {
      const int i = std::countr_zero(doubtful);
      EncodeAny(values + i, std::integral_constant<int64_t, 1>(), codes + i);
    }
  }
  [[gnu::noinline, gnu::cold]] void EncodeGroup(const C* values, uint8_t* codes) const {
    EncodeAny(values, std::integral_constant<int64_t, kGroup>(), codes);
  }
#endif

  template <typename Count>
  [[gnu::always_inline]] void EncodeAny(const C* __restrict values, Count count,
                                        uint8_t* __restrict codes) const {
    if (lift_ == 1) [[likely]] {
      EncodeRatios([&](int64_t i) { return values[i] * inverse_; }, count, codes);
    } else {
      EncodeRatios([&](int64_t i) { return values[i] * lift_ * inverse_; }, count, codes);
    }
  }

  // These loops are simple enough for the compiler to vectorise.
  template <typename Ratio, typename Count>
  [[gnu::always_inline]] void EncodeRatios(const Ratio& ratio, Count count,
                                           uint8_t* __restrict codes) const {
    alignas(64) float ratios[kGroup];
    for (int64_t i = 0; i < count; ++i) ratios[i] = static_cast<float>(ratio(i));
    const uint32_t* __restrict buckets = map_.buckets();
    alignas(64) uint32_t wide[kGroup];
    for (int64_t i = 0; i < count; ++i) wide[i] = CodeMap::EncodeMagnitude(buckets, ratios[i]);
    if constexpr (kSigned) {
      const uint32_t at_least = keep_sign_ ? 1 : 0;
      for (int64_t i = 0; i < count; ++i) {
        wide[i] = CodeMap::SignedCode(wide[i], ratios[i], at_least);
      }
    }
    for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(wide[i]);
  }

  const CodeMap& map_;
  bool keep_sign_, zero_, ordinary_;
  C lift_, inverse_;
  float scale_;  // of EncodeLanes
};

}  // namespace apogee::optim::cpu

#endif  // APOGEE_OPTIM_CPU_LOOPS_BLOCK_CODES_H_
