// SPDX-License-Identifier: Apache-2.0

// nn::Moe against loops over doubles by docs/moe.md, and what its gradients promise.
#include "apogee/nn/moe/moe.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/recompute.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::nn {
namespace moe_test {

using ::testing::AllOf;
using testing::ExpectGradients;
using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;

using Row = std::vector<double>;

constexpr int64_t kHidden = 6, kInner = 5, kTokens = 9;

MoeConfig Small() { return {.num_experts = 4, .top_k = 2, .intermediate_size = kInner}; }

// With what DeepSeek-V3 has.
MoeConfig Grouped() {
  return {.num_experts = 8,
          .top_k = 3,
          .intermediate_size = kInner,
          .shared_size = 7,
          .score = RouterScore::kSigmoid,
          .normalise = true,
          .scale = 2.5,
          .num_groups = 4,
          .top_groups = 2,
          .choice_bias = true,
          .names = {.shared = "shared_experts"}};
}

void ExpectSameGradients(const Module& one, const Module& other) {
  for (size_t i = 0; i < one.Parameters().size(); ++i) {
    const ParameterPtr a = one.Parameters()[i], b = other.Parameters()[i];
    ASSERT_EQ(a->has_grad(), b->has_grad());
    if (a->has_grad()) EXPECT_EQ(a->grad().ToVector<double>(), b->grad().ToVector<double>());
  }
}

class MoeTest : public ::testing::Test {
 protected:
  std::shared_ptr<Moe> Make(const MoeConfig& config, DType dtype = DType::kF64) {
    auto moe = std::make_shared<Moe>(kHidden, config, MoeOptions{.init = Init::Normal(0, 0.7)});
    moe->Initialize(context_, {.seed = 3, .dtype = dtype});
    if (config.choice_bias) {
      for (const ParameterPtr& buffer : moe->Buffers()) {
        buffer->data().CopyFrom(RandomTensor(buffer->shape(), "bias", context_, 0.3));
      }
    }
    return moe;
  }
  Tensor Input(DType dtype = DType::kF64) const {
    return RandomTensor({3, 3, kHidden}, "x", context_, 1, dtype);
  }

  const ContextPtr context_ = TestContext();
};

Row Product(const Module& moe, const std::string& name, const Row& x) {
  const Row w = moe.FindParameter(name)->data().ToVector<double>();
  Row y(w.size() / x.size());
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) y[i] += w[i * x.size() + j] * x[j];
  }
  return y;
}

Row GatedMlp(const Module& moe, const std::string& at, const Row& x) {
  const Row gate = Product(moe, at + "gate_proj.weight", x);
  Row inner = Product(moe, at + "up_proj.weight", x);
  for (size_t i = 0; i < inner.size(); ++i) inner[i] *= gate[i] / (1 + std::exp(-gate[i]));
  return Product(moe, at + "down_proj.weight", inner);
}

// One token through Grouped(), with the experts that were chosen.
Row GroupedToken(const Module& moe, const Row& x, const std::vector<int64_t>& chosen) {
  Row scores = Product(moe, "gate.weight", x), weights;
  for (double& score : scores) score = 1 / (1 + std::exp(-score));
  double sum = 1e-20;
  for (const int64_t e : chosen) sum += scores[static_cast<size_t>(e)];
  Row y = GatedMlp(moe, "shared_experts.", x);
  for (const int64_t e : chosen) {
    const Row own = GatedMlp(moe, "experts." + std::to_string(e) + ".", x);
    const double weight = 2.5 * scores[static_cast<size_t>(e)] / sum;
    for (size_t i = 0; i < y.size(); ++i) y[i] += weight * own[i];
  }
  return y;
}

TEST_F(MoeTest, SigmoidScoresGroupsBiasAndASharedExpert) {
  const auto moe = Make(Grouped());
  const Row x = Input().ToVector<double>();
  const Row y = (*moe)(Input()).Detach().ToVector<double>();
  const Row bias = moe->Buffers()[0]->data().ToVector<double>();
  for (size_t t = 0; t < kTokens; ++t) {
    const Row token(x.begin() + static_cast<int64_t>(t * kHidden),
                    x.begin() + static_cast<int64_t>((t + 1) * kHidden));
    const auto first = moe->record().chosen.begin() + static_cast<int64_t>(3 * t);
    const std::vector<int64_t> chosen(first, first + 3);
    // Of the scores with the bias, each chosen one is among the best of its two groups.
    Row scores = Product(*moe, "gate.weight", token);
    for (size_t e = 0; e < 8; ++e) scores[e] = 1 / (1 + std::exp(-scores[e])) + bias[e];
    double least = 1e9;
    for (const int64_t e : chosen) least = std::min(least, scores[static_cast<size_t>(e)]);
    for (const int64_t e : chosen) {
      for (const int64_t other : {e, e ^ 1}) {
        const bool taken = std::ranges::find(chosen, other) != chosen.end();
        EXPECT_TRUE(taken || scores[static_cast<size_t>(other)] <= least);
      }
    }
    const Row want = GroupedToken(*moe, token, chosen);
    for (size_t i = 0; i < kHidden; ++i) EXPECT_NEAR(y[t * kHidden + i], want[i], 1e-12);
  }
}

TEST_F(MoeTest, Gradients) {
  for (const MoeConfig& config : {Small(), Grouped()}) {
    const auto moe = Make(config);
    ExpectGradients({Input()}, [&](const std::vector<Tensor>& in) { return (*moe)(in[0]); });
  }
}

// The gate's logits become those of one expert alone.
void SendAllTo(Moe& moe, size_t expert, const Tensor& x) {
  const Row first = x.ToVector<double>();
  const ParameterPtr gate = moe.FindParameter("gate.weight");
  Row weight(static_cast<size_t>(gate->shape().numel()));
  for (size_t i = 0; i < kHidden; ++i) weight[expert * kHidden + i] = i == 0 ? 50 : 0;
  gate->data().SetValues(weight);
}

TEST_F(MoeTest, AnExpertWithoutTokensHasNoGradient) {
  MoeConfig config = Small();
  config.top_k = 1;
  const auto moe = Make(config);
  Tensor x = Tensor::Full({2, 4, kHidden}, DType::kF64, 1, context_);
  SendAllTo(*moe, 2, x);
  autograd::Backward(autograd::Sum((*moe)(x)));
  EXPECT_EQ(moe->record().counts, (std::vector<int64_t>{0, 0, 8, 0}));
  for (const ParameterPtr& parameter : moe->Parameters()) {
    const std::string& name = parameter->name();
    const bool used = name == "gate.weight" || name.starts_with("experts.2.");
    EXPECT_EQ(parameter->has_grad(), used) << name;
  }
}

TEST_F(MoeTest, ChoicesBeyondTheCapacityAreDropped) {
  MoeConfig config = Small();
  config.top_k = 1;
  config.capacity_factor = 1.2;  // ceil(1.2 * 8 / 4) = 3
  const auto moe = Make(config);
  const Tensor x = Tensor::Full({2, 4, kHidden}, DType::kF64, 1, context_);
  SendAllTo(*moe, 2, x);
  const Row y = (*moe)(x).Detach().ToVector<double>();
  EXPECT_EQ(moe->record().counts, (std::vector<int64_t>{0, 0, 3, 0}));
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i] != 0, i < 3 * kHidden) << i;
}

TEST_F(MoeTest, RecomputeGivesTheSameBitsAndRecordsOnce) {
  const auto plain = Make(Grouped()), again = Make(Grouped());
  const Tensor x = Input();
  autograd::Backward(autograd::Sum(autograd::Square((*plain)(x))));
  const Tensor y = autograd::Recompute([&](const Tensor& in) { return (*again)(in); }, x);
  const std::vector<int64_t> chosen = again->TakeRecord().chosen;
  EXPECT_EQ(chosen, plain->record().chosen);
  autograd::Backward(autograd::Sum(autograd::Square(y)));
  EXPECT_TRUE(again->record().chosen.empty());
  ExpectSameGradients(*plain, *again);
}

TEST_F(MoeTest, RecomputedExpertsGiveTheSameBitsAndKeepLess) {
  MoeConfig config = Grouped();
  config.shared_size = 0;
  const auto plain = Make(config);
  config.recompute = true;
  const auto again = Make(config);
  const Tensor x = Input();
  const auto loss = [&](Moe& moe) { return autograd::Sum(autograd::Square(moe(x))); };
  const auto bytes = [&] { return context_->ledger().live_bytes(MemoryCategory::kActivation); };
  const int64_t before = bytes();
  const Tensor kept = loss(*plain);
  const int64_t by_plain = bytes() - before;
  const Tensor less = loss(*again);
  const int64_t rows = 3 * kTokens;
  // Of each row, gate, up and their product. Recompute itself keeps nothing but the rows.
  EXPECT_EQ(by_plain - (bytes() - before - by_plain), rows * 3 * kInner * 8);
  EXPECT_EQ(kept.Item(), less.Item());
  autograd::Backward(kept);
  autograd::Backward(less);
  ExpectSameGradients(*plain, *again);
}

// The router computes in f32, and the sum over experts rounds once.
TEST_F(MoeTest, SixteenBits) {
  const auto narrow = Make(Small(), DType::kBF16), wide = Make(Small(), DType::kF64);
  for (size_t i = 0; i < wide->Parameters().size(); ++i) {
    wide->Parameters()[i]->data().CopyFrom(narrow->Parameters()[i]->data());
  }
  narrow->KeepLogits();
  const Tensor x = Input(DType::kBF16);
  const Tensor y = (*narrow)(x), want = (*wide)(x.To(DType::kF64));
  EXPECT_EQ(y.dtype(), DType::kBF16);
  EXPECT_EQ(narrow->record().logits.dtype(), DType::kF32);
  ASSERT_EQ(narrow->record().chosen, wide->record().chosen);
  const Row a = y.Detach().ToVector<double>(), b = want.Detach().ToVector<double>();
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], 0.03 * std::max(1.0, std::fabs(b[i])));
}

TEST_F(MoeTest, NamesOfTheParameters) {
  MoeConfig config = Grouped();
  config.num_experts = config.num_groups = 2;
  config.top_k = 1;
  std::vector<std::string> names;
  const auto moe = Make(config);
  for (const ParameterPtr& parameter : moe->Parameters()) names.push_back(parameter->name());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(
                         "gate.weight", "experts.0.gate_proj.weight", "experts.0.up_proj.weight",
                         "experts.0.down_proj.weight", "experts.1.gate_proj.weight",
                         "experts.1.up_proj.weight", "experts.1.down_proj.weight",
                         "shared_experts.gate_proj.weight", "shared_experts.up_proj.weight",
                         "shared_experts.down_proj.weight"));
  EXPECT_EQ(moe->Buffers()[0]->name(), "gate.e_score_correction_bias");
}

TEST_F(MoeTest, Misuse) {
  const auto moe = Make(Small());
  Tensor x = Input();
  Row values = x.ToVector<double>();
  values[4 * kHidden] = std::numeric_limits<double>::quiet_NaN();
  x.SetValues(values);
  EXPECT_THAT([&] { (*moe)(x); },
              Says(AllOf(HasSubstr("the score of expert 0 for token 4"),
                         HasSubstr("is not a number"), HasSubstr("Lower the learning rate"))));
  MoeConfig config{.num_experts = 6, .top_k = 5, .num_groups = 4, .top_groups = 0};
  EXPECT_THAT([&] { Moe(kHidden, config); },
              Says(AllOf(HasSubstr("intermediate_size must be positive, got 0"),
                         HasSubstr("num_groups 4 must divide the 6 experts"),
                         HasSubstr("top_groups must be in [1, 4], got 0"))));
  config = Small();
  config.top_k = 5;
  EXPECT_THAT([&] { Moe(kHidden, config); },
              Says(HasSubstr("top_k must be in [1, 4], the number of experts, got 5")));
  config = Grouped();
  config.top_k = 5;
  EXPECT_THAT([&] { Moe(kHidden, config); },
              Says(HasSubstr("top_k 5 is more than the 4 experts of 2 groups")));
}

}  // namespace moe_test
}  // namespace apogee::nn
