// SPDX-License-Identifier: Apache-2.0

// The 16-bit floats: every value, and every rounding decision, against arithmetic in double.
#include "apogee/core/dtype.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace apogee {
namespace dtype_test {

// The value of a binary float with the given field widths; infinity and NaN too.
double Decode(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
  const double fraction = exponent == 0 ? mantissa : mantissa + std::ldexp(1, mantissa_bits);
  return sign * std::ldexp(fraction, std::max(exponent, 1) - bias - mantissa_bits);
}

template <typename T>
T FromBits(uint32_t bits) {
  T value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

template <typename T>
void CheckEveryValue(int exponent_bits, int mantissa_bits) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double expected = Decode(bits, exponent_bits, mantissa_bits);
    const float value = static_cast<float>(FromBits<T>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(T(value)))) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
      ASSERT_EQ(T(value).bits, bits);
    }
  }
}

// Between each two neighbours: just below the middle, the middle (to even), just above.
template <typename T>
void CheckEveryRounding(int exponent_bits, int mantissa_bits) {
  const uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = Decode(bits, exponent_bits, mantissa_bits);
    // Above the largest value lies what would be next, were there no infinity.
    const double step = Decode(std::min(bits + 1, infinity - 1), exponent_bits, mantissa_bits) -
                        Decode(std::min(bits, infinity - 2), exponent_bits, mantissa_bits);
    const float middle = static_cast<float>(low + step / 2);
    ASSERT_EQ(static_cast<double>(middle), low + step / 2) << bits;
    const uint32_t even = bits + (bits & 1);
    const float below = std::nextafter(middle, 0.0f);
    const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
    for (uint32_t sign : {0u, 0x8000u}) {
      const float factor = sign != 0 ? -1.0f : 1.0f;
      ASSERT_EQ(T(factor * middle).bits, even | sign) << bits;
      ASSERT_EQ(T(factor * below).bits, bits | sign) << bits;
      ASSERT_EQ(T(factor * above).bits, (bits + 1) | sign) << bits;
    }
  }
}

TEST(BFloat16, EveryValueRoundTrips) { CheckEveryValue<BFloat16>(8, 7); }
TEST(BFloat16, RoundsToNearestEven) { CheckEveryRounding<BFloat16>(8, 7); }
TEST(Float16, EveryValueRoundTrips) { CheckEveryValue<Float16>(5, 10); }
TEST(Float16, RoundsToNearestEven) { CheckEveryRounding<Float16>(5, 10); }

TEST(HalfFloats, InfinityNaNAndTinyValues) {
  for (float sign : {1.0f, -1.0f}) {
    EXPECT_EQ(static_cast<float>(BFloat16(sign * INFINITY)), sign * INFINITY);
    EXPECT_EQ(static_cast<float>(Float16(sign * INFINITY)), sign * INFINITY);
    EXPECT_EQ(static_cast<float>(Float16(sign * 1e30f)), sign * INFINITY);
    EXPECT_EQ(static_cast<float>(Float16(sign * 65504.0f)), sign * 65504.0f);
    EXPECT_EQ(std::signbit(static_cast<float>(Float16(sign * 1e-30f))), sign < 0);
    EXPECT_EQ(static_cast<float>(Float16(sign * 1e-30f)), 0.0f);
  }
  // NaNs whose payload would round up into infinity.
  for (uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(bits)))));
    EXPECT_TRUE(std::isnan(static_cast<float>(Float16(std::bit_cast<float>(bits)))));
  }
}

TEST(DType, NamesAndSizes) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI64, DType::kI32,
                      DType::kU8, DType::kI8}) {
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
    DispatchAny(dtype, "test", [&]<typename T>() {
      EXPECT_EQ(DTypeOf<T>(), dtype);
      EXPECT_EQ(DTypeSize(dtype), static_cast<int64_t>(sizeof(T)));
    });
  }
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
    EXPECT_TRUE(IsFloat8(dtype) && !IsFloat(dtype));
    DispatchFloat8(dtype, "test", [&]<typename T>() {
      EXPECT_EQ(DTypeOf<T>(), dtype);
      EXPECT_EQ(DTypeSize(dtype), static_cast<int64_t>(sizeof(T)));
    });
  }
  EXPECT_EQ(DTypeFromName("fp32"), DType::kF32);
  EXPECT_EQ(DTypeFromName("fp16"), DType::kF16);
  EXPECT_EQ(DTypeFromName("fp64"), DType::kF64);
  EXPECT_THROW(DTypeFromName("float"), Error);
}

TEST(DType, DispatchFloatNamesTheOp) {
  try {
    DispatchFloat(DType::kI64, "gelu", []<typename T>() {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "gelu: needs a floating dtype (f32, bf16, f16, f64), got i64");
  }
  try {
    DispatchAny(DType::kF8E5M2, "fill", []<typename T>() {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "fill: does not compute with f8_e5m2, which is for storage only; make it a "
                 "floating dtype with ops::CastFromFloat8");
  }
}

}  // namespace dtype_test
}  // namespace apogee
