// SPDX-License-Identifier: Apache-2.0

// The 8-bit floats of the Open Compute Project's OFP8 specification (1.0, 2023), to store tensors:
//
//   const Float8E4M3 code(x, Float8Overflow::kSaturate);  // x: float or double
//   const float stored = static_cast<float>(code);        // exact
//   const float scale = Float8Scale<Float8E4M3>(amax);    // a power of two
//   const Float8E4M3 scaled(x * scale, Float8Overflow::kSaturate);
//   const float back = static_cast<float>(scaled) / scale;
//
//                  sign, exponent,   largest   smallest   infinity   NaN
//                  mantissa bits     finite    positive
//   Float8E4M3     1, 4, 3           448       2^-9       none       0x7f, 0xff
//   Float8E5M2     1, 5, 2           57344     2^-16      0x7c       0x7d-0x7f, 0xfd-0xff
//
// Rounding is to nearest, ties to the even mantissa; subnormals and the sign of zero are kept.
// NaN becomes a quiet NaN of the same sign without its payload. A double is rounded once, not
// through float. bf16 and fp16 convert to float without loss, so pass static_cast<float>(x).
// Nothing here is asynchronous. nvcc compiles it for the GPU, too, with the same bits.
#ifndef APOGEE_CORE_FLOAT8_H_
#define APOGEE_CORE_FLOAT8_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace apogee {

// The result for infinity, and for a number that rounds beyond the largest finite one. There is no
// default, because either choice is wrong for somebody: saturation hides an overflow.
enum class Float8Overflow : uint8_t {
  kSaturate,   // the largest finite number, with the sign; torchao's and OCP's saturating cast
  kNonFinite,  // infinity for e5m2, NaN for e4m3, which has no infinity
};

// The bit fields of float and double.
template <typename Source>
struct FloatFields {
  using Bits = std::conditional_t<std::is_same_v<Source, double>, uint64_t, uint32_t>;
  static constexpr int kMantissaBits = std::numeric_limits<Source>::digits - 1;
  static constexpr int kBias = std::numeric_limits<Source>::max_exponent - 1;
  static constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  static constexpr Bits kInfinity = Bits{2 * kBias + 1} << kMantissaBits;

  // 2^exponent, a normal number.
  static constexpr Source PowerOfTwo(int exponent) {
    return std::bit_cast<Source>(static_cast<Bits>(exponent + kBias) << kMantissaBits);
  }
};

template <int kExponentBits, int kMantissa, bool kHasInfinity>
struct BasicFloat8 {
  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  // Codes without the sign: the largest finite number, what follows it (infinity, or e4m3's only
  // NaN), and the NaN that results of conversions are.
  static constexpr uint8_t kLargest = kHasInfinity ? 0x7f - (1 << kMantissa) : 0x7e;
  static constexpr uint8_t kBeyond = kLargest + 1;
  static constexpr uint8_t kNaN = kHasInfinity ? kBeyond + (1 << (kMantissa - 1)) : kBeyond;

  uint8_t bits;

  BasicFloat8() = default;
  constexpr BasicFloat8(float value, Float8Overflow overflow) : bits(Round(value, overflow)) {}
  constexpr BasicFloat8(double value, Float8Overflow overflow) : bits(Round(value, overflow)) {}
  static constexpr BasicFloat8 FromBits(uint8_t bits) {
    BasicFloat8 value{};
    value.bits = bits;
    return value;
  }

  constexpr explicit operator float() const {
    using Fields = FloatFields<float>;
    const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
    const uint32_t code = bits & 0x7fu;
    // A float with these fields has an exponent that is too small by the difference of the biases.
    // The product corrects it, exactly also for subnormals.
    const uint32_t fields = code << (Fields::kMantissaBits - kMantissaBits);
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(fields) *
                                                    Fields::PowerOfTwo(Fields::kBias - kBias));
    const uint32_t nan = Fields::kInfinity | 0x400000u;
    const uint32_t special = kHasInfinity && code == kBeyond ? Fields::kInfinity : nan;
    return std::bit_cast<float>(sign | (code > kLargest ? special : finite));
  }
  constexpr explicit operator double() const { return static_cast<float>(*this); }

 private:
  // Branch-free, so that loops over it vectorise: every case is computed and one is selected.
  template <typename Source>
  static constexpr uint8_t Round(Source value, Float8Overflow overflow) {
    using Fields = FloatFields<Source>;
    using Bits = typename Fields::Bits;
    constexpr int kDropped = Fields::kMantissaBits - kMantissaBits;
    constexpr Source kSmallestNormal = Fields::PowerOfTwo(1 - kBias);
    // The last bit of this number is worth the smallest subnormal, so a sum with it rounds there.
    constexpr Source kAligned = Fields::PowerOfTwo(1 - kBias + kDropped);
    const Bits whole = std::bit_cast<Bits>(value);
    const Bits magnitude = whole & Fields::kMagnitude;
    const Bits subnormal = std::bit_cast<Bits>(std::bit_cast<Source>(magnitude) + kAligned) -
                           std::bit_cast<Bits>(kAligned);
    // In the mantissa's last place that stays, ties are even; a carry moves into the exponent.
    const Bits rebased = magnitude - (Bits{Fields::kBias - kBias} << Fields::kMantissaBits);
    const Bits almost_half = (Bits{1} << (kDropped - 1)) - 1;
    const Bits normal = (rebased + almost_half + ((magnitude >> kDropped) & 1)) >> kDropped;
    const Bits rounded = magnitude < std::bit_cast<Bits>(kSmallestNormal) ? subnormal : normal;
    const Bits beyond = overflow == Float8Overflow::kSaturate ? kLargest : kBeyond;
    const Bits finite = rounded > kLargest ? beyond : rounded;
    const Bits code = magnitude > Fields::kInfinity ? Bits{kNaN} : finite;
    const Bits sign = whole >> (sizeof(Bits) * 8 - 8) & 0x80u;
    return static_cast<uint8_t>(sign | code);
  }
};

using Float8E4M3 = BasicFloat8<4, 3, false>;
using Float8E5M2 = BasicFloat8<5, 2, true>;

// The scale of a tensor whose largest absolute value is `amax`: the largest power of two such that
// amax * scale is at most the largest finite number of Float8. So x * scale overflows nowhere and
// is exact, and so is the way back: the stored numbers differ from x by one rounding.
//
//   amax is 0              1
//   amax is tiny           the largest power of two whose inverse is a normal number (2^126 for
//                          float, 2^1022 for double), which is less than the rule says
//   amax is NaN, infinite  NaN: then every stored number is NaN, and the check of a step sees it
template <typename Float8, typename Source>
constexpr Source Float8Scale(Source amax) {
  using Fields = FloatFields<Source>;
  using Bits = typename Fields::Bits;
  constexpr int kMost = Fields::kBias - 1;
  const Bits magnitude = std::bit_cast<Bits>(amax) & Fields::kMagnitude;
  if (magnitude >= Fields::kInfinity) return std::numeric_limits<Source>::quiet_NaN();
  if (magnitude == 0) return 1;
  // Largest number and amax as m * 2^exponent with 1 <= m < 2. A subnormal amax gets kMost anyway.
  const Source largest = static_cast<Source>(Float8::FromBits(Float8::kLargest));
  const Bits largest_bits = std::bit_cast<Bits>(largest);
  const int exponents = static_cast<int>(largest_bits >> Fields::kMantissaBits) -
                        static_cast<int>(magnitude >> Fields::kMantissaBits);
  constexpr Bits kMantissa = (Bits{1} << Fields::kMantissaBits) - 1;
  const int fits = (magnitude & kMantissa) > (largest_bits & kMantissa) ? 1 : 0;
  const int exponent = exponents - fits;
  return Fields::PowerOfTwo(exponent < kMost ? exponent : kMost);
}

}  // namespace apogee

#endif  // APOGEE_CORE_FLOAT8_H_
