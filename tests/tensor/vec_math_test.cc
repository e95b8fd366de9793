// SPDX-License-Identifier: Apache-2.0

// The vectorised functions against double, in units in the last place.
#include "apogee/tensor/cpu/vec_math.h"

#include <numbers>

#include "gtest/gtest.h"

namespace apogee::cpu {
namespace vec_math_test {

template <typename Fast, typename Exact>
double WorstUlp(float low, float high, Fast fast, Exact exact) {
  double worst = 0;
  // A stride that is no multiple of a power of two visits all kinds of mantissas.
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(x >= low && x <= high)) continue;
    const double expected = exact(static_cast<double>(x));
    const int exponent = expected == 0 ? -126 : std::max(std::ilogb(expected), -126);
    const double ulp = std::ldexp(1.0, exponent - 23);
    worst = std::max(worst, std::abs(static_cast<double>(fast(x)) - expected) / ulp);
  }
  return worst;
}

TEST(VecMath, ErrorsInUlp) {
  const auto exp = [](double x) { return std::exp(x); };
  const auto tanh = [](double x) { return std::tanh(x); };
  const auto erf = [](double x) { return std::erf(x); };
  const auto log = [](double x) { return std::log(x); };
  EXPECT_LE(WorstUlp(
                -110, 88.7f, [](float x) { return FastExp(x); }, exp),
            1.5);
  EXPECT_LE(WorstUlp(
                -30, 30, [](float x) { return FastTanh(x); }, tanh),
            2);
  EXPECT_LE(WorstUlp(
                -30, 30, [](float x) { return FastErf(x); }, erf),
            1.5);
  EXPECT_LE(WorstUlp(
                0x1p-126f, 3e38f, [](float x) { return FastLog(x); }, log),
            1.5);
  EXPECT_LE(WorstUlp(
                0x1p-149f, 3.4e38f, [](float x) { return FastLogOfAny(x); }, log),
            1.5);
  const auto log1p = [](double x) { return std::log1p(x); };
  EXPECT_LE(WorstUlp(
                -0.9999f, 3.4e38f, [](float x) { return FastLog1p(x); }, log1p),
            3);
  for (const float exponent : {-2.5f, -1.0f, 0.3f, 1.7f, 3.0f}) {
    EXPECT_LE(WorstUlp(
                  1e-12f, 1e12f, [=](float x) { return FastPow(x, exponent); },
                  [=](double x) { return std::pow(x, static_cast<double>(exponent)); }),
              1);
  }
}

TEST(VecMath, NaNAndInfinity) {
  EXPECT_TRUE(std::isnan(FastExp(NAN)));
  EXPECT_TRUE(std::isnan(FastTanh(NAN)));
  EXPECT_TRUE(std::isnan(FastErf(NAN)));
  EXPECT_EQ(FastExp(INFINITY), INFINITY);
  EXPECT_EQ(FastExp(89.0f), INFINITY);
  EXPECT_EQ(FastExp(-INFINITY), 0);
  EXPECT_EQ(FastExp(0.0f), 1);
  EXPECT_EQ(FastTanh(-INFINITY), -1);
  EXPECT_EQ(FastErf(INFINITY), 1);
  EXPECT_EQ(FastLog(1.0f), 0);
}

TEST(VecMath, PowersOfNegativeNumbersAndLimits) {
  EXPECT_EQ(FastPow(-2.0f, 3.0f), -8);
  EXPECT_EQ(FastPow(-2.0f, 2.0f), 4);
  EXPECT_EQ(FastPow(-2.0f, -1.0f), -0.5f);
  EXPECT_TRUE(std::isnan(FastPow(-2.0f, 0.5f)));
  EXPECT_EQ(FastPow(0.0f, 2.5f), 0);
  EXPECT_EQ(FastPow(0.0f, -2.5f), INFINITY);
  EXPECT_EQ(FastPow(INFINITY, 0.5f), INFINITY);
  EXPECT_EQ(FastPow(INFINITY, -0.5f), 0);
  EXPECT_EQ(FastPow(NAN, 0.0f), 1);
  EXPECT_TRUE(std::isnan(FastPow(NAN, 2.0f)));
  EXPECT_EQ(FastPow(1e30f, 2.0f), INFINITY);
}

TEST(VecMath, SinCosOfManyTurns) {
  for (int i = -100000; i < 100000; ++i) {
    const double turns = i * 0.0137;
    const SinCos angle = FastSinCosTurns(turns);
    EXPECT_NEAR(angle.sin, std::sin(2 * std::numbers::pi * turns), 1.2e-7) << turns;
    EXPECT_NEAR(angle.cos, std::cos(2 * std::numbers::pi * turns), 1.2e-7) << turns;
  }
}

}  // namespace vec_math_test
}  // namespace apogee::cpu
