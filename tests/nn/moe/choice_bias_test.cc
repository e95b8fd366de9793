// SPDX-License-Identifier: Apache-2.0

// UpdateChoiceBias against its formula: counts of the whole window, without evaluation and second
// runs of Recompute.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/recompute.h"
#include "apogee/nn/moe/moe.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::nn {
namespace choice_bias_test {

using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;

constexpr int64_t kHidden = 5, kTokens = 24, kExperts = 4, kTopK = 2;
constexpr double kRate = 0.125;  // exact in f32

MoeConfig Config() {
  return {.num_experts = kExperts,
          .top_k = kTopK,
          .intermediate_size = 4,
          .score = RouterScore::kSigmoid,
          .normalise = true,
          .choice_bias = true};
}

class ChoiceBiasTest : public ::testing::Test {
 protected:
  std::shared_ptr<Moe> Make(const MoeConfig& config = Config()) {
    auto moe = std::make_shared<Moe>(kHidden, config, MoeOptions{.init = Init::Normal(0, 0.8)});
    moe->Initialize(context_, {.seed = 8});
    return moe;
  }
  Tensor Input(const std::string& name) {
    return RandomTensor({kTokens, kHidden}, name, context_).To(DType::kF32);
  }
  static std::vector<double> Bias(const Moe& moe) {
    return moe.choice_bias()->data().ToVector<double>();
  }

  const ContextPtr context_ = TestContext();
};

std::vector<int64_t> Count(const std::vector<int64_t>& chosen) {
  std::vector<int64_t> counts(kExperts);
  for (const int64_t expert : chosen) ++counts[static_cast<size_t>(expert)];
  return counts;
}

TEST_F(ChoiceBiasTest, FollowsTheCountsOfTheWholeWindow) {
  const auto moe = Make();
  std::vector<double> want(kExperts, 0.0);
  bool differs = false;
  for (int step = 0; step < 12; ++step) {
    std::vector<int64_t> window(kExperts), last;
    for (int micro = 0; micro < 3; ++micro) {
      (*moe)(Input("x" + std::to_string(3 * step + micro)));
      last = Count(moe->record().chosen);
      for (size_t e = 0; e < window.size(); ++e) window[e] += last[e];
    }
    UpdateChoiceBias(*moe, kRate);
    constexpr int64_t kMean = 3 * kTokens * kTopK / kExperts;
    for (size_t e = 0; e < window.size(); ++e) {
      if (window[e] < kMean) want[e] += kRate;
      if (window[e] > kMean) want[e] -= kRate;
      differs |= (window[e] < kMean) != (3 * last[e] < kMean);
    }
    ASSERT_EQ(Bias(*moe), want) << step;
  }
  EXPECT_TRUE(differs) << "the last micro-batch alone would do";
}

TEST_F(ChoiceBiasTest, BringsTheLoadsTogether) {
  const auto moe = Make();
  // Tokens have something in common, so that many prefer the same experts.
  const Tensor x =
      autograd::Add(Input("x"), Tensor::Full({kTokens, kHidden}, DType::kF32, 0.7, context_));
  const auto spread = [&] {
    (*moe)(x);
    const std::vector<int64_t> counts = Count(moe->record().chosen);
    const auto [least, most] = std::ranges::minmax(counts);
    return most - least;
  };
  const int64_t before = spread();
  EXPECT_GE(before, 8);
  for (int step = 0; step < 200; ++step) {
    UpdateChoiceBias(*moe, 0.005);
    (*moe)(x);
  }
  EXPECT_LT(2 * spread(), before);
}

TEST_F(ChoiceBiasTest, EvaluationAndSecondRunsDoNotCount) {
  const auto moe = Make();
  const Tensor x = Input("x");
  moe->Train(false);
  (*moe)(x);
  EXPECT_EQ(moe->TakeChoices(), std::vector<int64_t>(kExperts, 0));
  moe->Train();
  const Tensor y = autograd::Recompute([&](const Tensor& in) { return (*moe)(in); }, x);
  autograd::Backward(autograd::Sum(y));
  const std::vector<int64_t> choices = moe->TakeChoices();
  EXPECT_EQ(choices, Count(moe->record().chosen));
  EXPECT_EQ(std::accumulate(choices.begin(), choices.end(), int64_t{0}), kTokens * kTopK);
}

TEST_F(ChoiceBiasTest, BadInput) {
  const auto moe = Make();
  EXPECT_THAT([&] { UpdateChoiceBias(*moe, -1); }, Says(HasSubstr("rate is -1; it must be")));
  EXPECT_THAT([&] { UpdateChoiceBias(*moe, std::numeric_limits<double>::infinity()); },
              Says(HasSubstr("rate is inf; it must be")));
  MoeConfig config = Config();
  config.choice_bias = false;
  const auto without = Make(config);
  EXPECT_THAT([&] { UpdateChoiceBias(*without, kRate); },
              Says(HasSubstr("no mixture of experts with MoeConfig::choice_bias")));
}

}  // namespace choice_bias_test
}  // namespace apogee::nn
