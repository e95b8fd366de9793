// SPDX-License-Identifier: Apache-2.0

// Sampling against a scalar reference that follows the transformers library step by step.
#include "apogee/nn/generation/sampling.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "apogee/core/rng.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn {
namespace sampling_test {

using apogee::testing::Says;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> Softmax(const std::vector<double>& scores) {
  const double most = *std::ranges::max_element(scores);
  std::vector<double> p;
  double sum = 0;
  for (const double score : scores) sum += p.emplace_back(std::exp(score - most));
  for (double& each : p) each /= sum;
  return p;
}

// TemperatureLogitsWarper, TopKLogitsWarper and TopPLogitsWarper, then softmax.
std::vector<double> Probabilities(std::vector<double> scores, const SamplingOptions& o) {
  for (double& score : scores) score /= o.temperature;
  if (o.top_k > 0) {
    std::vector<double> sorted = scores;
    std::ranges::sort(sorted, std::greater<>());
    const double kth = sorted[static_cast<size_t>(std::min(o.top_k, std::ssize(sorted)) - 1)];
    for (double& score : scores) score = score < kth ? -kInfinity : score;
  }
  if (o.top_p < 1) {
    const std::vector<double> p = Softmax(scores);
    std::vector<size_t> ascending(scores.size());
    std::iota(ascending.begin(), ascending.end(), 0);
    // Of equal tokens the first ones stay.
    std::ranges::stable_sort(ascending, [&](size_t a, size_t b) {
      return scores[a] != scores[b] ? scores[a] < scores[b] : a > b;
    });
    double sum = 0;
    for (size_t i = 0; i + 1 < ascending.size(); ++i) {
      sum += p[ascending[i]];
      if (sum <= 1 - o.top_p) scores[ascending[i]] = -kInfinity;
    }
  }
  return Softmax(scores);
}

std::vector<double> RandomLogits(int64_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0, 3);
  std::vector<double> logits(static_cast<size_t>(n));
  for (double& logit : logits) logit = std::round(normal(engine) * 8) / 8;  // some are equal
  return logits;
}

// The token whose share of (0, 1] holds u, unless u is too close to its ends to tell.
void ExpectDraws(const std::vector<double>& logits, const SamplingOptions& options) {
  const std::vector<double> p = Probabilities(logits, options);
  for (int64_t step = 0; step < 300; ++step) {
    const double u = DrawOf(9, 0, step);
    double sum = 0;
    size_t token = 0;
    bool close = false;
    for (size_t i = 0; i < p.size(); ++i) {
      if (p[i] == 0) continue;
      if (sum < u) token = i;
      sum += p[i];
      close = close || std::abs(sum - u) < 1e-12;
    }
    if (close) continue;
    ASSERT_EQ(SampleToken(logits, options, u), static_cast<int64_t>(token))
        << "n " << p.size() << ", temperature " << options.temperature << ", top_k "
        << options.top_k << ", top_p " << options.top_p << ", step " << step;
  }
}

TEST(SamplingTest, EqualsTheReference) {
  unsigned seed = 0;
  for (const int64_t n : {1, 2, 17, 129, 1500}) {
    for (const double temperature : {0.3, 1.0, 2.5}) {
      for (const int64_t top_k : {0, 1, 7, 100, 5000}) {
        for (const double top_p : {1.0, 0.95, 0.5, 0.01}) {
          ExpectDraws(RandomLogits(n, ++seed),
                      {.temperature = temperature, .top_k = top_k, .top_p = top_p});
        }
      }
    }
  }
}

// Every token that the draws give, over a grid of u.
std::set<int64_t> Drawn(const std::vector<double>& logits, const SamplingOptions& options) {
  std::set<int64_t> drawn;
  for (int i = 1; i <= 4096; ++i) drawn.insert(SampleToken(logits, options, i / 4096.0));
  return drawn;
}

TEST(SamplingTest, TiesAndEdges) {
  using Set = std::set<int64_t>;
  const std::vector<double> logits = {1, 3, 2, 2, -kInfinity, 2};
  EXPECT_EQ(Drawn(logits, {.temperature = 1}), Set({0, 1, 2, 3, 5}));
  // All that are as likely as the second stay.
  EXPECT_EQ(Drawn(logits, {.temperature = 1, .top_k = 2}), Set({1, 2, 3, 5}));
  EXPECT_EQ(Drawn(logits, {.temperature = 1, .top_k = 1}), Set({1}));
  // The smallest set: a sum of exactly top_p is enough; of equal tokens the first are taken.
  const std::vector<double> quarters(4, 0);
  EXPECT_EQ(Drawn(quarters, {.temperature = 1, .top_p = 0.25}), Set({0}));
  EXPECT_EQ(Drawn(quarters, {.temperature = 1, .top_p = 0.5}), Set({0, 1}));
  EXPECT_EQ(Drawn(quarters, {.temperature = 1, .top_p = 0.51}), Set({0, 1, 2}));
  // top_p counts what top_k has left: 2/3 and 1/3, not 1/2 and 1/4.
  const std::vector<double> halves = {std::log(2.0), std::log(4.0), 0, 0};
  EXPECT_EQ(Drawn(halves, {.temperature = 1, .top_k = 2, .top_p = 0.66}), Set({1}));
  EXPECT_EQ(Drawn(halves, {.temperature = 1, .top_p = 0.66}), Set({0, 1}));
  EXPECT_EQ(Drawn(logits, {.temperature = 1e-300}), Set({1}));
}

// Draws of many seeds, rows and steps, counted: chi-squared against the reference.
TEST(SamplingTest, FrequenciesAreTheProbabilities) {
  const std::vector<double> logits = RandomLogits(12, 99);
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 1}, SamplingOptions{.temperature = 3},
        SamplingOptions{.temperature = 2, .top_k = 6},
        SamplingOptions{.temperature = 2, .top_p = 0.8},
        SamplingOptions{.temperature = 4, .top_k = 9, .top_p = 0.9}}) {
    const std::vector<double> p = Probabilities(logits, options);
    std::vector<int64_t> counts(p.size());
    int64_t draws = 0;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      for (int64_t row = 0; row < 10; ++row) {
        for (int64_t step = 0; step < 400; ++step, ++draws) {
          const double u = DrawOf(seed, row, step);
          ++counts[static_cast<size_t>(SampleToken(logits, options, u))];
        }
      }
    }
    double squares = 0, freedom = -1;
    for (size_t i = 0; i < p.size(); ++i) {
      const double expected = p[i] * static_cast<double>(draws);
      EXPECT_EQ(p[i] == 0 && counts[i] > 0, false) << "token " << i;
      if (expected < 5) continue;
      squares += std::pow(static_cast<double>(counts[i]) - expected, 2) / expected;
      ++freedom;
    }
    ASSERT_GT(freedom, 2);
    // The mean and four standard deviations of the distribution.
    EXPECT_LT(squares, freedom + 4 * std::sqrt(2 * freedom))
        << "temperature " << options.temperature;
  }
}

TEST(SamplingTest, GreedyTakesTheFirstOfTheLargest) {
  EXPECT_EQ(SampleToken(std::vector<double>{1, 5, 2, 5}, {}, 0.7), 1);
  EXPECT_EQ(SampleToken(std::vector<double>{-kInfinity, -kInfinity, -4}, {}, 0.7), 2);
}

TEST(SamplingTest, DrawsArePureFunctions) {
  EXPECT_EQ(DrawOf(1, 2, 3), DrawOf(1, 2, 3));
  // Texts of a seed stay the same: the step counts, and the row is the counter's upper half.
  EXPECT_EQ(DrawOf(7, 2, 3), ToUniform(Philox(MakeKey(7, "generate"), 3, 2)[0]));
  std::set<double> draws;
  for (uint64_t seed : {1, 2}) {
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t step = 0; step < 5; ++step) draws.insert(DrawOf(seed, row, step));
    }
  }
  EXPECT_EQ(draws.size(), 50u);
  EXPECT_GT(*draws.begin(), 0);
  EXPECT_LE(*draws.rbegin(), 1);
}

TEST(SamplingTest, Refusals) {
  EXPECT_THAT([] { CheckSampling({.temperature = -1, .top_k = -2, .top_p = 0}); },
              Says(AllOf(HasSubstr("temperature must be above 0, or 0 for the most likely token, "
                                   "got -1"),
                         HasSubstr("top_k must be positive, or 0 for all tokens, got -2"),
                         HasSubstr("top_p must be in (0, 1], got 0"))));
  EXPECT_THAT([] { CheckSampling({.temperature = NAN}); }, Says(HasSubstr("got nan")));
  EXPECT_THAT([] { CheckSampling({.top_k = 5}); }, Says(HasSubstr("no effect at temperature 0")));
  EXPECT_THAT([] { CheckSampling({.top_p = 0.5}); }, Says(HasSubstr("no effect")));
  CheckSampling({.temperature = 1, .top_k = 5, .top_p = 0.5});
  const auto sample = [](const std::vector<double>& logits) { SampleToken(logits, {}, 0.5); };
  EXPECT_THAT([&] { sample({0, NAN}); }, Says(HasSubstr("the logit of token 1 is NaN")));
  EXPECT_THAT([&] { sample({0, kInfinity}); }, Says(HasSubstr("of token 1, is inf")));
  EXPECT_THAT([&] { sample({-kInfinity}); }, Says(HasSubstr("of token 0, is -inf")));
  EXPECT_THAT([&] { sample({}); }, Says(HasSubstr("there are no logits")));
}

}  // namespace sampling_test
}  // namespace apogee::nn
