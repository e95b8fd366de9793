// SPDX-License-Identifier: Apache-2.0

// The 8-bit floats against a search in double over the values of all codes. It knows neither the
// bits of a float nor how the library rounds.
#include "apogee/core/float8.h"

#include <sys/wait.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <vector>

#include "apogee/core/dtype.h"
#include "gtest/gtest.h"

namespace apogee {
namespace float8_test {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Float8Overflow kBoth[] = {Float8Overflow::kSaturate, Float8Overflow::kNonFinite};

// A format by its definition.
struct Format {
  int mantissa_bits, bias;
  uint32_t largest;  // the code
  bool has_infinity;
  std::vector<double> middles = {};  // between each code and the next one; they are exact in double

  Format(int mantissa_bits, int bias, uint32_t largest, bool has_infinity)
      : mantissa_bits(mantissa_bits), bias(bias), largest(largest), has_infinity(has_infinity) {
    for (uint32_t code = 0; code <= largest; ++code) {
      middles.push_back((Finite(code) + Finite(code + 1)) / 2);
    }
  }
  // The value of a code without sign, as if all codes were finite.
  double Finite(uint32_t code) const {
    const uint32_t exponent = code >> mantissa_bits, steps = 1u << mantissa_bits;
    const double fraction = code % steps + (exponent > 0 ? steps : 0);
    return std::ldexp(fraction, std::max(static_cast<int>(exponent), 1) - bias - mantissa_bits);
  }
  double Value(uint32_t bits) const {
    const uint32_t code = bits & 0x7f;
    const double special = has_infinity && code == largest + 1 ? kInf : kNaN;
    return std::copysign(code <= largest ? Finite(code) : special, bits >> 7 ? -1 : 1);
  }
  // The code nearest to x.
  uint32_t Nearest(double x, Float8Overflow overflow) const {
    const uint32_t sign = std::signbit(x) ? 0x80 : 0;
    if (std::isnan(x)) return sign | (has_infinity ? 0x7e : 0x7f);
    const double magnitude = std::fabs(x);
    uint32_t code = 0;
    while (code <= largest &&
           (magnitude > middles[code] || (magnitude == middles[code] && code % 2 != 0))) {
      ++code;
    }
    if (code > largest && overflow == Float8Overflow::kSaturate) code = largest;
    return sign | code;
  }
};

template <typename T>
const Format kFormat(3, 7, 0x7e, false);
template <>
const Format kFormat<Float8E5M2>(2, 15, 0x7b, true);

template <typename T>
class Float8 : public testing::Test {
 protected:
  const Format& definition_ = kFormat<T>;

  // x is rounded as the search does. Every value is a double; those of floats are rounded from
  // float, too.
  void Check(double x) {
    for (const Float8Overflow overflow : kBoth) {
      const uint32_t expected = definition_.Nearest(x, overflow);
      ASSERT_EQ(T(x, overflow).bits, expected) << x;
      const float narrow = static_cast<float>(x);
      if (narrow == x || std::isnan(x)) {
        ASSERT_EQ(T(narrow, overflow).bits, expected) << x << " as float";
      }
    }
  }
  void CheckBothSigns(double x) {
    Check(x);
    Check(-x);
  }
};

using Types = testing::Types<Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Float8, Types);

TYPED_TEST(Float8, EveryCodeHasItsValue) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const TypeParam code = TypeParam::FromBits(static_cast<uint8_t>(bits));
    const float value = static_cast<float>(code);
    const double expected = this->definition_.Value(bits);
    ASSERT_EQ(std::isnan(value), std::isnan(expected)) << bits;
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    ASSERT_EQ(std::isnan(static_cast<double>(code)), std::isnan(expected)) << bits;
    if (std::isnan(expected)) continue;
    ASSERT_EQ(value, expected) << bits;
    ASSERT_EQ(static_cast<double>(code), expected) << bits;
    ASSERT_EQ(TypeParam(value, Float8Overflow::kNonFinite).bits, bits);
  }
}

TYPED_TEST(Float8, RoundsEveryBFloat16AndEveryFloat16) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    BFloat16 brain{};
    Float16 half{};
    brain.bits = half.bits = static_cast<uint16_t>(bits);
    this->Check(static_cast<float>(brain));
    this->Check(static_cast<float>(half));
  }
}

// Between each two neighbours, and beyond the largest: the middle, and the numbers next to it. That
// of double is nearer to the middle than any float, so rounding it to float first would make a tie.
TYPED_TEST(Float8, RoundsAtEveryMiddle) {
  const Format& format = this->definition_;
  for (uint32_t code = 0; code <= format.largest; ++code) {
    for (const double at : {format.Finite(code), format.middles[code]}) {
      const float single = static_cast<float>(at);
      ASSERT_EQ(single, at);
      this->CheckBothSigns(at);
      this->CheckBothSigns(std::nextafter(single, -1.0f));
      this->CheckBothSigns(std::nextafter(single, INFINITY));
      this->CheckBothSigns(std::nextafter(at, -1.0));
      this->CheckBothSigns(std::nextafter(at, kInf));
    }
  }
}

TYPED_TEST(Float8, ExtremesOfFloatAndDouble) {
  for (const double x :
       {0.0, kInf, kNaN, double{std::numeric_limits<float>::max()},
        double{std::numeric_limits<float>::denorm_min()}, double{std::numeric_limits<float>::min()},
        std::numeric_limits<double>::max(), std::numeric_limits<double>::denorm_min(),
        std::numeric_limits<double>::min(), 1e-30, 1e30, 1e-300, 1e300}) {
    this->CheckBothSigns(x);
  }
  // NaNs whose payload might be carried into the exponent, or lie in bits that are dropped.
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u}) {
    this->Check(std::bit_cast<float>(bits));
  }
  for (const uint64_t bits : {0x7ff0000000000001u, 0x7fffffffffffffffu, 0xfff0000000000001u}) {
    this->Check(std::bit_cast<double>(bits));
  }
}

TEST(Float8Conversion, KnownValues) {
  // The OFP8 specification's table of values.
  EXPECT_EQ(static_cast<float>(Float8E4M3::FromBits(0x7e)), 448.0f);
  EXPECT_EQ(static_cast<float>(Float8E4M3::FromBits(0x08)), 0x1p-6f);
  EXPECT_EQ(static_cast<float>(Float8E4M3::FromBits(0x01)), 0x1p-9f);
  EXPECT_EQ(static_cast<float>(Float8E5M2::FromBits(0x7b)), 57344.0f);
  EXPECT_EQ(static_cast<float>(Float8E5M2::FromBits(0x04)), 0x1p-14f);
  EXPECT_EQ(static_cast<float>(Float8E5M2::FromBits(0x01)), 0x1p-16f);
  EXPECT_EQ(static_cast<float>(Float8E5M2::FromBits(0x7c)), kInf);
  // 464 and 61440 are the middles beyond the largest numbers. 448 is even and 57344 is odd.
  EXPECT_EQ(Float8E4M3(464.0f, Float8Overflow::kNonFinite).bits, 0x7e);
  EXPECT_EQ(Float8E4M3(464.00003f, Float8Overflow::kNonFinite).bits, 0x7f);
  EXPECT_EQ(Float8E5M2(61440.0f, Float8Overflow::kNonFinite).bits, 0x7c);
  EXPECT_EQ(Float8E5M2(61440.0f, Float8Overflow::kSaturate).bits, 0x7b);
  EXPECT_EQ(Float8E4M3(-kInf, Float8Overflow::kSaturate).bits, 0xfe);
  EXPECT_EQ(Float8E4M3(-kInf, Float8Overflow::kNonFinite).bits, 0xff);
  static_assert(Float8E4M3(1.0f, Float8Overflow::kSaturate).bits == 0x38);
  static_assert(sizeof(Float8E4M3) == 1 && std::is_trivial_v<Float8E5M2>);
}

// The largest power of two by trying all of them.
template <typename T, typename Source>
double SearchScale(Source amax, int most) {
  int exponent = -1100;
  const double largest = kFormat<T>.Finite(kFormat<T>.largest);
  // A product of a double and a power of two may leave double's range; a quotient's log does not.
  while (exponent < most && std::ldexp(static_cast<long double>(amax), exponent + 1) <= largest) {
    ++exponent;
  }
  return std::ldexp(1.0, exponent);
}

TYPED_TEST(Float8, ScaleIsTheLargestPowerOfTwoThatFits) {
  std::vector<double> amaxes = {std::numeric_limits<float>::max(),
                                std::numeric_limits<float>::min(),
                                std::numeric_limits<float>::denorm_min(), 1e-30, 3e30};
  for (uint32_t bits = 1; bits < 0x7f80; bits += 61) {
    BFloat16 brain{};
    brain.bits = static_cast<uint16_t>(bits);
    amaxes.push_back(static_cast<float>(brain));
  }
  for (const int exponent : {-20, 0, 7, 120}) {
    for (const float factor : {1.0f, 1.5f, 1.75f, 1.875f}) {
      const float amax = std::ldexp(factor, exponent);
      for (const float x : {std::nextafter(amax, 0.0f), amax, std::nextafter(amax, INFINITY)}) {
        amaxes.push_back(x);
      }
    }
  }
  for (const double amax : amaxes) {
    const float single = static_cast<float>(amax);
    ASSERT_EQ(Float8Scale<TypeParam>(single), (SearchScale<TypeParam>(single, 126))) << amax;
    ASSERT_EQ(Float8Scale<TypeParam>(amax), (SearchScale<TypeParam>(amax, 1022))) << amax;
  }
  for (const double amax : {std::numeric_limits<double>::max(), std::numeric_limits<double>::min(),
                            std::numeric_limits<double>::denorm_min(), 1e300, 1e-300}) {
    ASSERT_EQ(Float8Scale<TypeParam>(amax), (SearchScale<TypeParam>(amax, 1022))) << amax;
  }
}

TYPED_TEST(Float8, ScaleOfZeroInfinityAndNaN) {
  EXPECT_EQ(Float8Scale<TypeParam>(0.0f), 1.0f);
  EXPECT_EQ(Float8Scale<TypeParam>(-0.0), 1.0);
  EXPECT_TRUE(std::isnan(Float8Scale<TypeParam>(INFINITY)));
  EXPECT_TRUE(std::isnan(Float8Scale<TypeParam>(-kInf)));
  EXPECT_TRUE(std::isnan(Float8Scale<TypeParam>(NAN)));
}

// Scaling is exact: the same numbers times a power of two get the same codes, and what the format
// can hold comes back unchanged.
TYPED_TEST(Float8, ScaledNumbersComeBack) {
  constexpr Float8Overflow kOverflow = Float8Overflow::kNonFinite;
  for (const int shift : {-126, -60, -3, 0, 5, 90, 111}) {
    std::vector<float> values;
    for (uint32_t code = 0; code <= this->definition_.largest; ++code) {
      const double value = std::ldexp(this->definition_.Finite(code), shift);
      if (static_cast<float>(value) == value) values.push_back(static_cast<float>(value));
    }
    const float scale = Float8Scale<TypeParam>(values.back());
    ASSERT_EQ(scale, std::ldexp(1.0f, -shift));
    for (const float value : values) {
      const TypeParam code(value * scale, kOverflow);
      ASSERT_EQ(static_cast<float>(code) / scale, value) << shift;
      ASSERT_EQ(static_cast<float>(code) * (1 / scale), value) << shift;
      const float between = 1.03f * std::ldexp(value, -shift);
      const float shifted = std::ldexp(between, shift);
      if (std::ldexp(shifted, -shift) != between) continue;
      ASSERT_EQ(TypeParam(shifted * scale, kOverflow).bits, TypeParam(between, kOverflow).bits);
    }
  }
}

TEST(Float8Conversion, AgreesWithMlDtypes) {
  const int status = std::system("${PYTHON:-python3} " APOGEE_CHECK_FLOAT8);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "Python has no ml_dtypes";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace float8_test
}  // namespace apogee
