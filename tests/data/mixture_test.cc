// SPDX-License-Identifier: Apache-2.0

// Mixtures: exact quotas in every window, whatever the weights and the ranks.
#include "apogee/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "apogee/data/token_dataset.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/data/numbered_samples.h"
#include "apogee/tests/support/message_of.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee::data {
namespace mixture_test {

using apogee::testing::IdsOf;
using apogee::testing::MessageOf;
using apogee::testing::NumberedSamples;
using ::testing::HasSubstr;

MixtureDataset Parts(const std::vector<int64_t>& sizes) {
  MixtureDataset::Parts parts;
  for (const int64_t size : sizes) parts.push_back(std::make_shared<NumberedSamples>(size));
  return MixtureDataset(std::move(parts));
}

size_t PartOf(const std::vector<int64_t>& sizes, int64_t sample) {
  size_t part = 0;
  while (sample >= sizes[part]) sample -= sizes[part++];
  return part;
}

TEST(MixtureTest, CountsAreLessThanOneOffAfterEveryWindow) {
  struct Case {
    std::vector<double> weights;
    int64_t window;
  };
  for (const auto& [weights, window] :
       {Case{{0.7, 0.2, 0.1}, 10}, Case{{0.7, 0.2, 0.1}, 17}, Case{{1, 1, 1}, 4},
        Case{{5, 3}, 2 + 1}, Case{{1e-3, 0.5, 0.25, 0.249}, 1000}, Case{{1}, 5},
        Case{{1, 1, 1, 1, 1, 1, 1}, 7}, Case{{M_PI, 1, M_E, M_SQRT2, 1.01}, 11}}) {
    std::vector<int64_t> sizes(weights.size());
    for (size_t k = 0; k < sizes.size(); ++k) sizes[k] = 3 + static_cast<int64_t>(5 * k);
    const MixtureSampler order(Parts(sizes), {.weights = weights, .window = window, .seed = 4});
    long double sum = 0;
    for (const double weight : weights) sum += weight;
    std::vector<int64_t> counts(weights.size());
    for (int64_t n = 1; n <= 300; ++n) {
      std::vector<int64_t> quotas(weights.size());
      for (int64_t i = (n - 1) * window; i < n * window; ++i) {
        ++quotas[PartOf(sizes, order.Sample(i))];
      }
      for (size_t k = 0; k < weights.size(); ++k) {
        counts[k] += quotas[k];
        const long double exact = static_cast<long double>(n * window) * weights[k] / sum;
        ASSERT_LT(std::abs(static_cast<long double>(counts[k]) - exact), 1)
            << "part " << k << " after window " << n;
        const double share = static_cast<double>(window) * weights[k] / static_cast<double>(sum);
        if (share == std::floor(share)) {
          ASSERT_EQ(quotas[k], static_cast<int64_t>(share)) << k;
        }
      }
      ASSERT_EQ(order.CountsAfter(n), counts);
    }
  }
}

TEST(MixtureTest, FarPlacesAreAsExact) {
  const MixtureSampler order(Parts({1000, 7, 50}), {.weights = {1, 1, 1}, .window = 100});
  for (const int64_t n : {int64_t{1} << 40, (int64_t{1} << 55) + 1}) {
    int64_t sum = 0;
    for (const int64_t count : order.CountsAfter(n)) {
      EXPECT_LE(std::abs(count - n * 100 / 3), 1);
      sum += count;
    }
    EXPECT_EQ(sum, n * 100);
  }
  EXPECT_LT(order.Sample(int64_t{1} << 60), 1057);
}

// Each part is read in permutations of its own.
TEST(MixtureTest, EachPartIsAPermutation) {
  const std::vector<int64_t> sizes = {30, 10};
  const MixtureSampler order(Parts(sizes), {.weights = {0.75, 0.25}, .window = 20, .seed = 1});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 40; ++i) seen.insert(order.Sample(epoch * 40 + i));
    EXPECT_EQ(seen.size(), 40u) << "15 and 5 of each window";
  }
  // The places in a window are shuffled, each window otherwise.
  std::set<std::vector<size_t>> patterns;
  for (int64_t n = 0; n < 10; ++n) {
    std::vector<size_t> pattern;
    for (int64_t i = 0; i < 20; ++i) pattern.push_back(PartOf(sizes, order.Sample(n * 20 + i)));
    patterns.insert(pattern);
  }
  EXPECT_EQ(patterns.size(), 10u);
}

TEST(MixtureTest, RanksReadTheSameMixture) {
  const auto mixture = std::make_shared<MixtureDataset>(Parts({30, 10}));
  const auto order = std::make_shared<MixtureSampler>(
      *mixture, MixtureOptions{.weights = {2, 1}, .window = 6, .seed = 1});
  for (const int ranks : {1, 3, 4}) {
    std::vector<int64_t> got(120);
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t part = 12 / ranks;
      Loader loader(mixture, std::make_shared<DistributedSampler>(order, rank, ranks, part),
                    CpuContext(), {.batch = part, .threads = rank % 2});
      for (int64_t step = 0; step < 10; ++step) {
        std::ranges::copy(IdsOf(loader.Next()), got.begin() + step * 12 + rank * part);
      }
    }
    for (int64_t i = 0; i < 120; ++i) {
      const int64_t sample = order->Sample(i);
      ASSERT_EQ(got[static_cast<size_t>(i)], sample < 30 ? sample : sample - 30);
    }
  }
}

TEST(MixtureTest, BadInputSaysWhatIsRight) {
  const auto message = [](const std::vector<double>& weights, int64_t window = 10) {
    return MessageOf([&] {
      MixtureSampler(Parts({5, 5}), {.weights = weights, .window = window});
    });
  };
  EXPECT_THAT(message({1, 0}), HasSubstr("the weight of dataset 1 is 0; weights must be above 0"));
  EXPECT_THAT(message({-0.5, 1}), HasSubstr("the weight of dataset 0 is -0.5"));
  EXPECT_THAT(message({1, std::nan("")}), HasSubstr("the weight of dataset 1 is nan"));
  EXPECT_THAT(message({1, std::numeric_limits<double>::infinity()}),
              HasSubstr("the weight of dataset 1 is inf"));
  EXPECT_THAT(message({1e308, 1e308}), HasSubstr("the sum of the weights is too large"));
  EXPECT_THAT(message({1}), HasSubstr("1 weights for 2 datasets"));
  EXPECT_THAT(message({1, 1}, 0), HasSubstr("window must be 1 to 2^40 samples, got 0"));
  EXPECT_THAT(message({99, 1}),
              HasSubstr("dataset 1 of weight 1 has less than one sample in a window of 10; use a "
                        "window of at least 100"));
  EXPECT_EQ(message({99, 1}, 100), "nothing was thrown");
  EXPECT_THAT(MessageOf([] { MixtureDataset(MixtureDataset::Parts{}); }),
              HasSubstr("there are no datasets to mix"));
  const auto tokens = std::make_shared<MemoryTokenSource>(std::vector<int32_t>{1, 2, 3, 4});
  const auto blocks = std::make_shared<BlockDataset>(tokens, BlockOptions{.block = 2});
  const auto packed = std::make_shared<PackedDataset>(tokens, PackedOptions{.block = 2});
  EXPECT_THAT(MessageOf([&] {
                MixtureDataset(MixtureDataset::Parts{blocks, packed});
              }),
              HasSubstr("dataset 1 has fields inputs i64 [2], targets i64 [2], starts i64 [2], the "
                        "first has inputs i64 [2], targets i64 [2]"));
}

}  // namespace mixture_test
}  // namespace apogee::data
