// SPDX-License-Identifier: Apache-2.0

// random and dropout: the numbering of elements, and the values against double.
#include <numbers>

#include "apogee/core/rng.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace random_test {

constexpr PhiloxKey kKey{123, 456};

uint32_t Word(int64_t element) {
  return Philox(kKey, static_cast<uint64_t>(element / 4))[static_cast<size_t>(element % 4)];
}

double Normal(int64_t element) {
  const int64_t pair = element - element % 2;
  const double radius = std::sqrt(-2 * std::log(static_cast<double>(ToUniform(Word(pair)))));
  const double angle = 2 * std::numbers::pi * ToUniform(Word(pair + 1));
  return radius * (element % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

TEST(Random, MatchesTheNumberingFromAnyFirstElement) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (int64_t first : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{62}, int64_t{1} << 40}) {
      for (int64_t n : {0, 1, 5, 63, 64, 65, 33 * 17}) {
        Buffer uniform(dtype, n), normal(dtype, n);
        context->kernels().random(
            *context, {Distribution::kUniform, dtype, uniform.data(), n, kKey, first, -0.5, 1.5});
        context->kernels().random(
            *context, {Distribution::kNormal, dtype, normal.data(), n, kKey, first, 0.25, 2});
        std::vector<double> expected_uniform, expected_normal;
        for (int64_t i = first; i < first + n; ++i) {
          expected_uniform.push_back(-0.5 + 2.0 * ToUniform(Word(i)));
          expected_normal.push_back(0.25 + 2 * Normal(i));
        }
        const double tolerance = Tolerance(dtype, ErrorKind::kElementwise);
        ExpectClose(uniform.values(), expected_uniform, tolerance);
        // Close to 1 the logarithm amplifies nothing, but its square root does: hence the floor.
        ExpectClose(normal.values(), expected_normal, tolerance, 2);
      }
    }
  }
}

TEST(Random, MomentsOfNormal) {
  const ContextPtr context = TestContext({.num_threads = 2});
  const int64_t n = 1 << 20;
  Buffer y(DType::kF32, n);
  context->kernels().random(*context,
                            {Distribution::kNormal, DType::kF32, y.data(), n, kKey, 0, 0, 1});
  double moments[4] = {};
  for (double value : y.values()) {
    double power = 1;
    for (double& moment : moments) moment += (power *= value);
  }
  const double count = static_cast<double>(n);
  EXPECT_NEAR(moments[0] / count, 0, 5e-3);
  EXPECT_NEAR(moments[1] / count, 1, 1e-2);
  EXPECT_NEAR(moments[2] / count, 0, 2e-2);
  EXPECT_NEAR(moments[3] / count, 3, 6e-2);
}

TEST(Dropout, KeepsByTheUniformAndScales) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (double p : {0.0, 0.1, 0.5, 1.0}) {
      for (int64_t first : {0, 3, 130}) {
        for (int64_t n : {0, 1, 17, 64, 33 * 17}) {
          const Buffer x = Buffer::Normal(dtype, n, 1);
          Buffer y = x;
          // In place.
          context->kernels().dropout(*context, {dtype, y.data(), y.data(), n, p, kKey, first});
          std::vector<double> expected = x.values();
          for (int64_t i = 0; i < n; ++i) {
            double& value = expected[static_cast<size_t>(i)];
            const bool keep = static_cast<double>(ToUniform(Word(first + i))) > p;
            value = keep ? value / (1 - p) : 0;
          }
          ExpectClose(y.values(), expected, Tolerance(dtype, ErrorKind::kElementwise));
        }
      }
    }
  }
}

TEST(Dropout, RowsAreApartInTheStream) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (auto [row, stride] : {std::pair<int64_t, int64_t>{6, 10}, {8, 20}, {8, 8}, {5, 64}}) {
      for (int64_t first : {0, 3, 132}) {
        const int64_t rows = 7;
        const Buffer x = Buffer::Normal(dtype, rows * row, 1);
        Buffer y(dtype, rows * row);
        context->kernels().dropout(
            *context, {dtype, x.data(), y.data(), rows * row, 0.5, kKey, first, row, stride});
        std::vector<double> expected = x.values();
        for (int64_t i = 0; i < rows * row; ++i) {
          const uint32_t word = Word(first + i / row * stride + i % row);
          double& value = expected[static_cast<size_t>(i)];
          value = ToUniform(word) > 0.5f ? value * 2 : 0;
        }
        ExpectClose(y.values(), expected, Tolerance(dtype, ErrorKind::kElementwise));
      }
    }
  }
}

TEST(Dropout, KeepRateIsOneMinusP) {
  const ContextPtr context = TestContext();
  const int64_t n = 1 << 20;
  Buffer x(DType::kF32, std::vector<double>(static_cast<size_t>(n), 1.0));
  context->kernels().dropout(*context, {DType::kF32, x.data(), x.data(), n, 0.3, kKey, 0});
  double sum = 0;
  for (double value : x.values()) sum += value;
  EXPECT_NEAR(sum / static_cast<double>(n), 1, 5e-3);
}

TEST(Random, SameBitsForAnyNumberOfThreadsAndAnySplit) {
  const int64_t n = 100003;
  for (DType dtype : kFloats) {
    for (Distribution distribution : {Distribution::kUniform, Distribution::kNormal}) {
      const auto draw = [&](const DeviceContext& context, int64_t first, int64_t count) {
        Buffer y(dtype, count);
        context.kernels().random(context,
                                 {distribution, dtype, y.data(), count, kKey, first, 0, 1});
        return y.bytes();
      };
      ExpectSameBits([&](const DeviceContext& context) { return draw(context, 7, n); });
      // Two parts, as two ranks would draw them.
      const ContextPtr context = TestContext();
      std::vector<unsigned char> parts = draw(*context, 7, 50001);
      const std::vector<unsigned char> rest = draw(*context, 7 + 50001, n - 50001);
      parts.insert(parts.end(), rest.begin(), rest.end());
      EXPECT_EQ(parts, draw(*context, 7, n));
    }
  }
}

}  // namespace random_test
}  // namespace apogee
