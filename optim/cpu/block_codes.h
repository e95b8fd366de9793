// Decoding and encoding a piece of one block of 8-bit codes. Private to optim/cpu.
#ifndef APOGEE_OPTIM_CPU_BLOCK_CODES_H_
#define APOGEE_OPTIM_CPU_BLOCK_CODES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "apogee/optim/code_map.h"

namespace apogee::optim::cpu {

// Elements per piece: two staged f32 moments and a gradient of the default block stay in the
// first-level cache, and the largest block fits.
inline constexpr int64_t kMaxPiece = 4096;

// Calls fn(begin, count, block index) for every piece of elements [first, first + n) of a tensor in
// blocks of `block` (0: one), pieces numbered [from, to); `begin` counts from `first`.
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

template <typename C>
void Decode(const float* __restrict map, const uint8_t* __restrict codes, C scale, int64_t n,
            C* __restrict values) {
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<C>(map[codes[i]]) * scale;
}

// The largest magnitude. Bit patterns of magnitudes order as the magnitudes do, and a maximum of
// integers, unlike one of floating-point numbers, may be vectorised; NaN counts as the largest.
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

// Codes of values / absmax.
template <bool kSigned, typename C>
void Encode(const CodeMap& map, const C* __restrict values, C absmax, bool keep_sign, int64_t n,
            uint8_t* __restrict codes) {
  if (absmax == 0) {
    std::fill_n(codes, n, static_cast<uint8_t>(kSigned ? 127 : 0));
    return;
  }
  // 1 / absmax must not overflow: then scale both by a power of two.
  const C lift = absmax < C(1e-30) ? C(0x1p100) : C(1);
  const C inverse = 1 / (absmax * lift);
  const uint32_t* __restrict buckets = map.buckets();
  // Two loops over a block in the first-level cache: each is simple enough to be vectorised.
  alignas(64) float ratios[kMaxPiece];
  alignas(64) uint32_t wide[kMaxPiece];
  for (int64_t i = 0; i < n; ++i) ratios[i] = static_cast<float>(values[i] * lift * inverse);
  for (int64_t i = 0; i < n; ++i) wide[i] = CodeMap::EncodeMagnitude(buckets, ratios[i]);
  if constexpr (kSigned) {
    const uint32_t at_least = keep_sign ? 1 : 0;
    for (int64_t i = 0; i < n; ++i) wide[i] = CodeMap::SignedCode(wide[i], ratios[i], at_least);
  }
  for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(wide[i]);
}

}  // namespace apogee::optim::cpu

#endif  // APOGEE_OPTIM_CPU_BLOCK_CODES_H_
