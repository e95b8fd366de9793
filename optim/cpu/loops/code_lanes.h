// SPDX-License-Identifier: Apache-2.0

// Decodes and encodes 64 codes at a time with tables in registers, on processors that can look up
// bytes in a register (AVX-512 VBMI). Private to optim/cpu.
//
//   DecodeLanes<true>(CodeMap::Signed(), codes, values);              // map.values()[code]
//   EncodeLanes<true>(CodeMap::Signed(), ratios, keep_sign, codes);   // as CodeMap::Encode
//
// The general loops of block_codes.h need a gather per element, which takes several times as long.
// A table is stored as four planes; plane p has byte p of every entry. The bytes found in the
// planes are interleaved to floats. To encode, CodeMap::Line estimates the code of a magnitude to
// within half a code, and one comparison with the midpoint at the estimate decides, so codes are
// the nearest ones, bit for bit.
#ifndef APOGEE_OPTIM_CPU_LOOPS_CODE_LANES_H_
#define APOGEE_OPTIM_CPU_LOOPS_CODE_LANES_H_

#include "apogee/optim/lowbit/code_map.h"

#ifdef __AVX512VBMI__
#define APOGEE_CODE_LANES 1
#include <immintrin.h>

// The intrinsics use uninitialised placeholders for "any value".
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace apogee::optim::cpu {

// Packing four vectors to bytes, and interleaving bytes to four vectors, work within 128-bit lanes.
// That transposes the 4 x 4 matrix of groups of four codes ("packed order"). This transposes it
// back, or to packed order.
[[gnu::always_inline]] inline __m512i TransposeGroups(__m512i codes) {
  return _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), codes);
}

// Joins the bytes of four planes to 32-bit numbers, both in packed order.
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

// Looks up entries of a table. Indices are at most 255 if kWide, else 127.
template <bool kWide>
[[gnu::always_inline]] inline void LookUp(const CodeMap::Planes& table, __m512i index,
                                          __m512i out[4]) {
  __m512i plane[4];
  for (size_t p = 0; p < 4; ++p) {
    plane[p] = LookUpHalf(table[p].data(), index);
    if constexpr (kWide) {
      plane[p] = _mm512_mask_mov_epi8(plane[p], _mm512_movepi8_mask(index),
                                      LookUpHalf(table[p].data() + 128, index));
    }
  }
  Interleave(plane, out);
}

// Looks up entries of a signed map. Its negative values mirror the positive ones, so half of the
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

// Converts 64 numbers to bytes in packed order with saturation, which keeps their signs.
[[gnu::always_inline]] inline __m512i PackSigns(const __m512i x[4]) {
  return _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
}

// `values` and `ratios` are aligned to 64 bytes.
template <bool kSigned>
[[gnu::always_inline]] inline void DecodeLanes(const CodeMap& map, const uint8_t* codes,
                                               float* values) {
  __m512i bits[4];
  const __m512i packed = TransposeGroups(_mm512_loadu_si512(codes));
  kSigned ? LookUpSigned(map.value_planes(), packed, bits)
          : LookUp<true>(map.value_planes(), packed, bits);
  for (size_t q = 0; q < 4; ++q) _mm512_store_si512(values + 16 * q, bits[q]);
}

// Estimates codes by CodeMap::Line for 32 magnitudes, given as 5 bits of binade and 11 bits of
// position in it.
[[gnu::always_inline]] inline __m512i GuessCode(const CodeMap& map, __m512i magnitudes) {
  constexpr int kOne = (CodeMap::kHighest - CodeMap::kLowest) >> 12;
  const __m512i x = _mm512_min_epu16(magnitudes, _mm512_set1_epi16(static_cast<int16_t>(kOne)));
  const __m512i binade = _mm512_srli_epi16(x, 11);
  const __m512i position = _mm512_slli_epi16(x, 5);
  __m512i at[2];
  for (size_t k = 0; k < 2; ++k) {
    const CodeMap::Line& line = map.lines()[k];
    const __m512i rise = _mm512_permutexvar_epi16(binade, _mm512_load_si512(line.rise.data()));
    const __m512i start = _mm512_permutexvar_epi16(binade, _mm512_load_si512(line.start.data()));
    at[k] = _mm512_add_epi16(start, _mm512_mulhi_epu16(rise, position));
  }
  return _mm512_srli_epi16(_mm512_min_epu16(at[0], at[1]), 8);
}

template <bool kSigned>
[[gnu::always_inline]] inline void EncodeLanes(const CodeMap& map, const float* ratios,
                                               bool keep_sign, uint8_t* codes) {
  __m512i bits[4], size[4], above[4], middle[4], beyond[4];
  for (size_t q = 0; q < 4; ++q) {
    bits[q] = _mm512_load_si512(ratios + 16 * q);
    size[q] = _mm512_and_si512(bits[q], _mm512_set1_epi32(0x7fffffff));
    above[q] = _mm512_srai_epi32(
        _mm512_sub_epi32(size[q], _mm512_set1_epi32(static_cast<int>(CodeMap::kLowest))), 12);
  }
  // Saturation clamps the magnitudes, except to 1.
  const __m512i packed =
      _mm512_packus_epi16(GuessCode(map, _mm512_packus_epi32(above[0], above[1])),
                          GuessCode(map, _mm512_packus_epi32(above[2], above[3])));
  LookUp<!kSigned>(map.midpoint_planes(), packed, middle);
  for (size_t q = 0; q < 4; ++q) beyond[q] = _mm512_sub_epi32(middle[q], size[q]);
  const __m512i below_guess = _mm512_min_epi8(PackSigns(beyond), _mm512_setzero_si512());
  __m512i code = _mm512_sub_epi8(packed, _mm512_max_epi8(below_guess, _mm512_set1_epi32(-1)));
  if constexpr (kSigned) {
    const __m512i zero = _mm512_set1_epi32(0x7f7f7f7f);
    const __m512i at_least = _mm512_set1_epi32(keep_sign ? 0x01010101 : 0);
    const __m512i below = _mm512_min_epu8(_mm512_max_epu8(code, at_least), zero);
    const __mmask64 negative = _mm512_movepi8_mask(PackSigns(bits));
    code = _mm512_mask_sub_epi8(_mm512_add_epi8(zero, code), negative, zero, below);
  }
  _mm512_storeu_si512(codes, TransposeGroups(code));
}

}  // namespace apogee::optim::cpu

#endif  // __AVX512VBMI__

#endif  // APOGEE_OPTIM_CPU_LOOPS_CODE_LANES_H_
