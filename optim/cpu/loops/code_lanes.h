// SPDX-License-Identifier: Apache-2.0

// Decodes and encodes 64 codes at a time with tables in registers, on processors that can look up
// bytes in a register (AVX-512 VBMI). Private to optim/cpu.
//
//   DecodeLanes<true>(CodeMap::Signed(), codes, values);              // map.values()[code]
//   uint64_t doubtful = EncodeLanes<true>(CodeMap::Signed(), values, scale, keep_sign, codes);
//
// The general loops of block_codes.h need a gather per element, which takes several times as long.
// To decode, the table is stored as four planes; plane p has byte p of every value. The bytes found
// in the planes are interleaved to floats. To encode, a multiplication and an addition per element
// count the midpoints below it (CodeMap::Lines).
#ifndef APOGEE_OPTIM_CPU_LOOPS_CODE_LANES_H_
#define APOGEE_OPTIM_CPU_LOOPS_CODE_LANES_H_

#include "apogee/optim/lowbit/code_map.h"

#if defined(__AVX512VBMI__) && defined(__AVX512DQ__) && defined(__BMI2__)
#define APOGEE_CODE_LANES 1
#include <immintrin.h>

// The intrinsics use uninitialised placeholders for "any value".
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace apogee::optim::cpu {

// Interleaving bytes to four vectors works within 128-bit lanes. That transposes the 4 x 4 matrix
// of groups of four codes; this transposes the codes first.
[[gnu::always_inline]] inline __m512i TransposeGroups(__m512i codes) {
  return _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), codes);
}

// Joins the bytes of four planes, transposed, to 32-bit numbers.
[[gnu::always_inline]] inline void Interleave(const __m512i plane[4], __m512i out[4]) {
  const __m512i low01 = _mm512_unpacklo_epi8(plane[0], plane[1]);
  const __m512i high01 = _mm512_unpackhi_epi8(plane[0], plane[1]);
  const __m512i low23 = _mm512_unpacklo_epi8(plane[2], plane[3]);
  const __m512i high23 = _mm512_unpackhi_epi8(plane[2], plane[3]);
  out[0] = _mm512_unpacklo_epi16(low01, low23);
  out[1] = _mm512_unpackhi_epi16(low01, low23);
  out[2] = _mm512_unpacklo_epi16(high01, high23);
  out[3] = _mm512_unpackhi_epi16(high01, high23);
}

// Looks up bytes in one half of a plane by the lower 7 bits of the index.
[[gnu::always_inline]] inline __m512i LookUpHalf(const uint8_t* half, __m512i index) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(half), index, _mm512_load_si512(half + 64));
}

// Looks up values of an unsigned map.
[[gnu::always_inline]] inline void LookUpUnsigned(const CodeMap::Planes& table, __m512i index,
                                                  __m512i out[4]) {
  __m512i plane[4];
  for (size_t p = 0; p < 4; ++p) {
    plane[p] = _mm512_mask_mov_epi8(LookUpHalf(table[p].data(), index), _mm512_movepi8_mask(index),
                                    LookUpHalf(table[p].data() + 128, index));
  }
  Interleave(plane, out);
}

// Looks up values of a signed map. Its negative values mirror the positive ones, so half of the
// table is enough.
[[gnu::always_inline]] inline void LookUpSigned(const CodeMap::Planes& table, __m512i codes,
                                                __m512i out[4]) {
  const __m512i zero = _mm512_set1_epi32(0x7f7f7f7f);
  const __mmask64 present = _mm512_cmpneq_epu8_mask(codes, zero);
  const __mmask64 negative = _mm512_cmplt_epu8_mask(codes, zero);
  // The code of the magnitude, 128 to 255, without its highest bit.
  const __m512i index = _mm512_add_epi8(_mm512_abs_epi8(_mm512_sub_epi8(codes, zero)), zero);
  __m512i plane[4];
  for (size_t p = 0; p < 4; ++p) {
    const uint8_t* half = table[p].data() + 128;
    plane[p] = _mm512_maskz_permutex2var_epi8(present, _mm512_load_si512(half), index,
                                              _mm512_load_si512(half + 64));
  }
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80808080));
  plane[3] = _mm512_mask_add_epi8(plane[3], negative, plane[3], sign);
  Interleave(plane, out);
}

// `values` is aligned to 64 bytes.
template <bool kSigned>
[[gnu::always_inline]] inline void DecodeLanes(const CodeMap& map, const uint8_t* codes,
                                               float* values) {
  __m512i bits[4];
  const __m512i packed = TransposeGroups(_mm512_loadu_si512(codes));
  kSigned ? LookUpSigned(map.value_planes(), packed, bits)
          : LookUpUnsigned(map.value_planes(), packed, bits);
  for (size_t q = 0; q < 4; ++q) _mm512_store_si512(values + 16 * q, bits[q]);
}

// Constants of EncodeLanes. The compiler would compute most of them anew for every group; from
// memory each is an operand of the instruction that needs it.
template <typename T>
struct alignas(64) LaneConstant {
  constexpr explicit LaneConstant(T value) { x.fill(value); }
  __m512i Load() const { return _mm512_load_si512(x.data()); }

  std::array<T, 64 / sizeof(T)> x{};
};
struct LaneConstants {
  constexpr LaneConstants() {
    // From bytes 0, 2, 1, 3 of each lane to four runs of 16.
    constexpr uint8_t kByte[4] = {0, 2, 1, 3};
    for (size_t i = 0; i < 64; ++i) order.x[i] = static_cast<uint8_t>(i % 16 * 4 + kByte[i / 16]);
  }
  static const LaneConstants& Get() {
    static constexpr LaneConstants kConstants;
    const LaneConstants* constants = &kConstants;
    asm("" : "+r"(constants));  // hides the values from the compiler
    return *constants;
  }

  LaneConstant<uint32_t> lower_halves{0xffff}, magnitude{0x7fffffff};
  LaneConstant<uint16_t> lower_bytes{0xff};
  LaneConstant<uint8_t> one{1}, zero_code{127}, order{0};
  LaneConstant<float> least{0x1p-24f};
};

// Where `mask` has ones, the bits of x, else those of y.
[[gnu::always_inline]] inline __m512i Select(__m512i x, __m512i y, __m512i mask) {
  return _mm512_ternarylogic_epi32(x, y, mask, 0xe4);
}

// Encodes values / absmax. `scale`: CodeMap::Lines::stretch / absmax. Magnitudes are at most
// absmax, and `values` is aligned to 64 bytes. Returns the set of doubtful elements, about one in
// 5000. All other codes are those of CodeMap::Encode.
//
// Values of one byte per element are computed for all 64 elements at once: the elements of the four
// vectors use bytes 0, 2, 1 and 3 of each 32-bit lane. This order takes the fewest instructions.
template <bool kSigned>
[[gnu::always_inline]] inline uint64_t EncodeLanes(const CodeMap& map, const float* values,
                                                   float scale, bool keep_sign, uint8_t* codes) {
  const CodeMap::Lines& lines = map.lines();
  const LaneConstants& c = LaneConstants::Get();
  __m512 slopes = _mm512_load_ps(lines.slope.data());
  __m512 starts = _mm512_load_ps(lines.start.data());
  asm("" : "+v"(slopes), "+v"(starts));  // loaded once
  const auto upper_halves = [&](__m512i first, __m512i second) __attribute__((always_inline)) {
    return Select(_mm512_srli_epi32(first, 16), second, c.lower_halves.Load());
  };
  __m512i x[4];
  for (size_t q = 0; q < 4; ++q) {
    const __m512 product = _mm512_mul_ps(_mm512_load_ps(values + 16 * q), _mm512_set1_ps(scale));
    // The larger magnitude of the two, with the sign of the first if kSigned.
    x[q] = _mm512_castps_si512(
        _mm512_range_ps(product, _mm512_castsi512_ps(c.least.Load()), kSigned ? 3 : 11));
  }
  const __m512i upper01 = upper_halves(x[0], x[1]), upper23 = upper_halves(x[2], x[3]);
  const __m512i bits =
      Select(_mm512_srli_epi16(upper01, 5), _mm512_slli_epi16(upper23, 3), c.lower_bytes.Load());
  const __m512i line = LookUpHalf(lines.choice.data(), bits);
  const __m512i line23 = _mm512_srli_epi16(line, 8);
  const __m512i at[4] = {line, _mm512_srli_epi32(line, 16), line23, _mm512_srli_epi32(line23, 16)};
  __m512i sum[4];
  for (size_t q = 0; q < 4; ++q) {
    const __m512i size = kSigned ? _mm512_and_si512(x[q], c.magnitude.Load()) : x[q];
    sum[q] = _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(size),
                                                 _mm512_permutexvar_ps(at[q], slopes),
                                                 _mm512_permutexvar_ps(at[q], starts)));
    // The count to bits 16 to 23, the fraction below.
    if constexpr (!kSigned) sum[q] = _mm512_add_epi32(sum[q], sum[q]);
  }
  const __m512i count =
      Select(upper_halves(sum[0], sum[1]), _mm512_slli_epi16(upper_halves(sum[2], sum[3]), 8),
             c.lower_bytes.Load());
  const __m512i last = _mm512_shuffle_epi8(
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(lines.last.data()))),
      line);
  const __m512i excess = _mm512_subs_epu8(count, last);
  const __m512i above = _mm512_min_epu8(_mm512_subs_epu8(excess, c.one.Load()), c.one.Load());
  __m512i code = _mm512_add_epi8(_mm512_sub_epi8(count, excess), above);
  if constexpr (kSigned) {
    const __m512i signs = Select(_mm512_srli_epi16(upper01, 8), upper23, c.lower_bytes.Load());
    const __m512i at_least = _mm512_set1_epi32(keep_sign ? 0x01010101 : 0);
    const __m512i below = _mm512_min_epu8(_mm512_max_epu8(code, at_least), c.zero_code.Load());
    code = _mm512_mask_sub_epi8(_mm512_add_epi8(c.zero_code.Load(), code),
                                _mm512_movepi8_mask(signs), c.zero_code.Load(), below);
  }
  _mm512_storeu_si512(codes, _mm512_permutexvar_epi8(c.order.Load(), code));

  const __m512i limit = _mm512_set1_epi32(CodeMap::kDoubtful << (kSigned ? 0 : 1));
  const auto doubtful = [&](__m512i sums) __attribute__((always_inline)) {
    return _mm512_mask_cmplt_epu16_mask(0x55555555, sums, limit);
  };
  const __m512i least =
      _mm512_min_epu16(_mm512_min_epu16(sum[0], sum[1]), _mm512_min_epu16(sum[2], sum[3]));
  if (doubtful(least) == 0) [[likely]]
    return 0;
  uint64_t found = 0;
  for (int q = 0; q < 4; ++q) {
    found |= _pext_u64(doubtful(sum[q]), 0x55555555) << (16 * q);
  }
  return found;
}

}  // namespace apogee::optim::cpu

#endif  // __AVX512VBMI__ ...

#endif  // APOGEE_OPTIM_CPU_LOOPS_CODE_LANES_H_
