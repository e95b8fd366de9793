// SPDX-License-Identifier: Apache-2.0

// The order of samples: a uniform permutation without memory, the same however ranks, micro-batches
// and threads divide it, and after a resume under another number of ranks.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>
#include <vector>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/data/numbered_samples.h"
#include "apogee/tests/support/message_of.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee::data {
namespace order_test {

using apogee::testing::IdsOf;
using apogee::testing::MessageOf;
using apogee::testing::NumberedSamples;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

// In standard deviations from what a uniform distribution over the cells gives, by Wilson and
// Hilferty.
double ChiSquare(const std::vector<int64_t>& counts) {
  const double cells = static_cast<double>(counts.size()), freedom = cells - 1;
  const double mean =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0})) / cells;
  double sum = 0;
  for (const int64_t count : counts) sum += std::pow(static_cast<double>(count) - mean, 2) / mean;
  const double spread = 2 / (9 * freedom);
  return (std::cbrt(sum / freedom) - (1 - spread)) / std::sqrt(spread);
}

// The bin of a value in [0, n), of `bins`.
size_t Bin(int64_t value, int64_t n, int64_t bins) { return static_cast<size_t>(value * bins / n); }

TEST(OrderTest, AMillionSamplesAreAUniformPermutation) {
  constexpr int64_t kSamples = 1'000'000, kBins = 20;
  const ShuffleSampler order(kSamples, 7);
  std::vector<bool> seen(kSamples);
  // Which part of the stream a sample is in; and by how much it differs from the one before, modulo
  // the number of samples.
  std::vector<int64_t> places(kBins * kBins), steps(kBins * kBins), lows(1024);
  int64_t before = order.Sample(kSamples);
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t sample = order.Sample(i);
    ASSERT_FALSE(seen[static_cast<size_t>(sample)]) << i;
    seen[static_cast<size_t>(sample)] = true;
    ++places[Bin(i, kSamples, kBins) * kBins + Bin(sample, kSamples, kBins)];
    ++steps[Bin((sample - before + kSamples) % kSamples, kSamples, kBins * kBins)];
    ++lows[static_cast<size_t>((sample ^ before) & 1023)];
    before = sample;
  }
  // Counts of a permutation vary a little less than independent ones: the margin below is wide.
  EXPECT_LT(std::abs(ChiSquare(places)), 5);
  EXPECT_LT(std::abs(ChiSquare(steps)), 5);
  EXPECT_LT(std::abs(ChiSquare(lows)), 5);
}

// Over many epochs each sample is equally often at each place, for small ranges too.
TEST(OrderTest, EpochsAreIndependent) {
  for (const int64_t n : {3, 5, 17, 100}) {
    const ShuffleSampler order(n, 3);
    std::vector<int64_t> places(static_cast<size_t>(2 * n)), pairs(static_cast<size_t>(n * n));
    for (int64_t epoch = 0; epoch < 20'000; ++epoch) {
      for (const int64_t i : {0, 1}) {
        ++places[static_cast<size_t>(i * n + order.Sample(epoch * n + i))];
      }
      ++pairs[static_cast<size_t>(order.Sample(epoch * n) * n + order.Sample(epoch * n + n))];
    }
    EXPECT_LT(std::abs(ChiSquare(places)), 5) << n;
    EXPECT_LT(std::abs(ChiSquare(pairs)), 5) << n << ": an epoch says nothing about the next";
  }
}

TEST(OrderTest, ATrillionSamplesNeedNoMemory) {
  constexpr int64_t kSamples = 1'000'000'000'000;
  const ShuffleSampler order(kSamples, 1);
  std::unordered_set<int64_t> seen;
  std::vector<int64_t> bins(64);
  for (const int64_t first : {int64_t{0}, kSamples / 2, kSamples - 20'000}) {
    for (int64_t i = first; i < first + 20'000; ++i) {
      const int64_t sample = order.Sample(i);
      ASSERT_TRUE(sample >= 0 && sample < kSamples && seen.insert(sample).second) << i;
      ++bins[static_cast<size_t>(sample / (kSamples / 64))];
    }
  }
  EXPECT_LT(std::abs(ChiSquare(bins)), 5);
  EXPECT_NE(order.Sample(kSamples), order.Sample(0)) << "the next epoch";
}

struct Layout {
  int ranks = 1;
  int64_t accumulate = 1;
  int threads = 0;
};

// The samples of `steps` optimizer steps of `global_batch`, in the order in which one rank with the
// whole batch uses them. Starts and ends at `state`.
Ids Read(const Layout& layout, int64_t global_batch, int64_t steps, LoaderState& state,
         const std::shared_ptr<const Sampler>& order) {
  std::vector<Ids> parts(static_cast<size_t>(steps * layout.ranks));
  const int64_t window = global_batch / layout.ranks;
  LoaderState end;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    Loader loader(std::make_shared<NumberedSamples>(order->num_samples()),
                  std::make_shared<DistributedSampler>(order, rank, layout.ranks, window),
                  CpuContext(), {.batch = window / layout.accumulate, .threads = layout.threads});
    loader.set_state(state);
    for (int64_t step = 0; step < steps; ++step) {
      Ids& part = parts[static_cast<size_t>(step * layout.ranks + rank)];
      for (int64_t micro = 0; micro < layout.accumulate; ++micro) {
        const Ids ids = IdsOf(loader.Next());
        part.insert(part.end(), ids.begin(), ids.end());
      }
    }
    end = loader.state();
    EXPECT_EQ(end.samples, state.samples + steps * global_batch) << "on every rank";
  }
  state = end;
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(OrderTest, RanksAccumulationAndThreadsDoNotChangeIt) {
  const auto order = std::make_shared<ShuffleSampler>(101, 5);
  LoaderState end;
  const Ids want = Read({}, 36, 7, end, order);
  for (int64_t i = 0; i < 252; ++i) ASSERT_EQ(want[static_cast<size_t>(i)], order->Sample(i));
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int64_t accumulate : {1, 3}) {
      for (const int threads : {0, 1, 3}) {
        LoaderState state;
        EXPECT_EQ(Read({ranks, accumulate, threads}, 36, 7, state, order), want)
            << ranks << " ranks, " << accumulate << " micro-batches, " << threads << " threads";
      }
    }
  }
}

TEST(OrderTest, AResumedRunGoesOnUnderAnotherWorld) {
  const auto order = std::make_shared<ShuffleSampler>(101, 5);
  LoaderState end, state;
  const Ids want = Read({}, 12, 12, end, order);
  Ids got;
  for (const Layout& layout : {Layout{1, 2, 0}, Layout{4, 3, 2}, Layout{3, 1, 0}}) {
    const Ids part = Read(layout, 12, 4, state, order);
    got.insert(got.end(), part.begin(), part.end());
  }
  EXPECT_EQ(got, want);
  EXPECT_EQ(state.samples, 144);
}

// A global batch that the new ranks do not divide becomes another; no sample is skipped or used
// twice.
TEST(OrderTest, AResumedRunMayChangeItsBatch) {
  const auto order = std::make_shared<ShuffleSampler>(1009, 5);
  LoaderState state;
  Ids got;
  for (const auto& [ranks, batch, steps] :
       {std::tuple(1, 16, 5), std::tuple(4, 8, 3), std::tuple(3, 15, 4), std::tuple(2, 14, 3)}) {
    const Ids part = Read({ranks, 1, 0}, batch, steps, state, order);
    got.insert(got.end(), part.begin(), part.end());
  }
  ASSERT_EQ(state.samples, static_cast<int64_t>(got.size()));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], order->Sample(static_cast<int64_t>(i))) << i;
  }
}

TEST(OrderTest, AFiniteStreamEndsAfterAResumeToo) {
  const auto finite = std::make_shared<SequentialSampler>(40);
  Loader loader(std::make_shared<NumberedSamples>(40),
                std::make_shared<DistributedSampler>(finite, 1, 3, 4), CpuContext(), {.batch = 2});
  loader.set_state({.samples = 16});  // 24 are left: 2 windows of 12
  Ids ids;
  for (const Batch& batch : loader) {
    for (const int64_t id : IdsOf(batch)) ids.push_back(id);
  }
  EXPECT_EQ(ids, (Ids{20, 21, 22, 23, 32, 33, 34, 35}));
  EXPECT_EQ(loader.state().samples, 40);
  EXPECT_THAT(MessageOf([&] { loader.Next(); }), HasSubstr("the stream has no further batch"));
  loader.set_state({.samples = 100});
  EXPECT_TRUE(loader.begin() == loader.end());
}

TEST(OrderTest, OnlyWholeWindowsCanBeSaved) {
  Loader loader(std::make_shared<NumberedSamples>(40),
                std::make_shared<DistributedSampler>(std::make_shared<ShuffleSampler>(40, 1), 0, 2,
                                                     /*window=*/6),
                CpuContext(), {.batch = 3});
  loader.Next();
  EXPECT_THAT(MessageOf([&] { std::ignore = loader.state(); }),
              HasSubstr("this rank has used 3 of its 6 samples of a window; ask after the window's "
                        "last batch"));
  loader.Next();
  EXPECT_EQ(loader.state().samples, 12);
  EXPECT_THAT(MessageOf([&] { loader.set_state({.samples = -1}); }),
              HasSubstr("samples must not be negative, got -1"));
}

}  // namespace order_test
}  // namespace apogee::data
