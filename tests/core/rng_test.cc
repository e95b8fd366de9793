// SPDX-License-Identifier: Apache-2.0

// Philox 4x32-10 against the published vectors, and what users of streams rely on.
#include "apogee/core/rng.h"

#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace apogee {
namespace rng_test {

using Words = std::array<uint32_t, 4>;

TEST(Philox, PublishedVectors) {
  EXPECT_EQ(Philox({0, 0}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint64_t ones = ~uint64_t{0};
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff}, ones, ones),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Digits of pi: counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0.
  EXPECT_EQ(Philox({0xa4093822, 0x299f31d0}, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(ToUniform, CoversZeroExclusiveToOneInclusive) {
  EXPECT_EQ(ToUniform(0), 0x1p-24f);
  EXPECT_EQ(ToUniform(0xffffffff), 1.0f);
}

std::vector<double> Uniforms(PhiloxKey key, int n) {
  std::vector<double> values;
  for (int i = 0; i < n; ++i) {
    values.push_back(
        ToUniform(Philox(key, static_cast<uint64_t>(i / 4))[static_cast<size_t>(i % 4)]));
  }
  return values;
}

double Correlation(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - 0.5) * (b[i] - 0.5);
  return 12 * sum / static_cast<double>(a.size());
}

TEST(Philox, MeanVarianceAndBuckets) {
  constexpr int kN = 1 << 18;
  const std::vector<double> values = Uniforms(MakeKey(7, "moments"), kN);
  double mean = 0, square = 0;
  std::vector<int> buckets(64, 0);
  for (double value : values) {
    mean += value / kN;
    square += value * value / kN;
    ++buckets[std::min<size_t>(63, static_cast<size_t>(value * 64))];
  }
  EXPECT_NEAR(mean, 0.5, 3e-3);  // five standard deviations
  EXPECT_NEAR(square - mean * mean, 1.0 / 12, 1e-3);
  double chi_square = 0;
  for (int count : buckets) chi_square += std::pow(count - kN / 64.0, 2) / (kN / 64.0);
  EXPECT_LT(chi_square, 120);  // 63 degrees of freedom: beyond 1e-5
}

TEST(Philox, StreamsAndNeighboursAreIndependent) {
  constexpr int kN = 1 << 16;
  const double limit = 5 / std::sqrt(static_cast<double>(kN));
  const PhiloxKey key = MakeKey(7, "a");
  const std::vector<double> base = Uniforms(key, kN);
  EXPECT_LT(std::abs(Correlation(base, Uniforms(MakeKey(7, "b"), kN))), limit);
  EXPECT_LT(std::abs(Correlation(base, Uniforms(MakeKey(8, "a"), kN))), limit);
  EXPECT_LT(std::abs(Correlation(base, Uniforms(SubKey(key, 0), kN))), limit);
  EXPECT_LT(std::abs(Correlation(Uniforms(SubKey(key, 1), kN), Uniforms(SubKey(key, 2), kN))),
            limit);
  for (size_t lag : {1u, 2u, 4u}) {
    const std::vector<double> head(base.begin(), base.end() - static_cast<std::ptrdiff_t>(lag));
    const std::vector<double> tail(base.begin() + static_cast<std::ptrdiff_t>(lag), base.end());
    EXPECT_LT(std::abs(Correlation(head, tail)), limit) << lag;
  }
}

TEST(Keys, DifferForDifferentSeedsNamesAndStreams) {
  std::set<std::pair<uint32_t, uint32_t>> keys;
  const auto add = [&](PhiloxKey key) { keys.insert({key.a, key.b}); };
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (const char* name : {"", "a", "b", "ab", "ba"}) add(MakeKey(seed, name));
    for (uint64_t stream = 0; stream < 10; ++stream) add(SubKey(MakeKey(seed, "x"), stream));
    add(MakeKey(seed << 32, "high"));
  }
  EXPECT_EQ(keys.size(), 50u * 16u);
}

TEST(Generator, ReplaysFromItsState) {
  Generator generator(3);
  generator.Next();
  const uint64_t state = generator.next_stream();
  const PhiloxKey second = generator.Next();
  Generator replay(3);
  replay.set_next_stream(state);
  const PhiloxKey again = replay.Next();
  EXPECT_EQ(second.a, again.a);
  EXPECT_EQ(second.b, again.b);
  EXPECT_EQ(replay.next_stream(), generator.next_stream());
}

}  // namespace rng_test
}  // namespace apogee
