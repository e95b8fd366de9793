// SPDX-License-Identifier: Apache-2.0

// Code maps, block-wise quantization, AdamW with 8-bit states.
#include "apogee/optim/lowbit/quantized_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/lowbit/adamw8bit.h"
#include "apogee/tests/optim/lowbit/adam8_rule.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/optim/shard_pair.h"

namespace apogee::optim {
namespace quantized_state_test {

TEST(CodeMapTest, Values) {
  const float* s = CodeMap::Signed().values();
  const float* u = CodeMap::Unsigned().values();
  EXPECT_TRUE(std::is_sorted(s, s + 256) && std::is_sorted(u, u + 256));
  EXPECT_EQ(s[127], 0);
  EXPECT_EQ(s[255], 1);
  EXPECT_EQ(s[0], -0.99296875f);
  EXPECT_EQ(u[0], 0);
  EXPECT_EQ(u[255], 1);
  EXPECT_EQ(u[254], 0.996484375f);
}

TEST(CodeMapTest, EncodesTheNearestValue) {
  for (const CodeMap* map : {&CodeMap::Signed(), &CodeMap::Unsigned()}) {
    std::vector<double> xs = RandomValues(20000, 3, 0.3);
    for (int i = 0; i < 20000; ++i) xs.push_back(xs[static_cast<size_t>(i)] * std::pow(10, -i % 8));
    for (const double value : xs) {
      const float x = static_cast<float>(map->is_signed() ? value : std::fabs(value));
      const auto error = [&](int code) { return std::fabs(double{map->values()[code]} - x); };
      double best = 1e9;
      for (int code = 0; code < 256; ++code) best = std::min(best, error(code));
      ASSERT_LE(error(map->Encode(x)), best * (1 + 1e-5)) << x;
    }
    EXPECT_EQ(map->Encode(5), 255);
    for (int code = 0; code < 256; ++code) ASSERT_EQ(map->Encode(map->values()[code]), code);
  }
}

class QuantizedStateTest : public ::testing::Test {
 protected:
  QuantizedState Make(int64_t n, int64_t block) {
    return QuantizedState(Tensor::Zeros({n}, DType::kU8, context_),
                          Tensor::Zeros(BlockScaleShape(n, block), DType::kF32, context_),
                          CodeMap::Signed(), block);
  }
  ContextPtr context_ = TestContext({.num_threads = 2});
};

TEST_F(QuantizedStateTest, RoundTripWithinTheSpacing) {
  for (const int64_t block : {0, 256, 2048}) {
    const QuantizedState state = Make(5001, block);
    const Tensor x = RandomTensor({5001}, DType::kF32, context_, 9);
    state.Quantize(x);
    const std::vector<double> in = Values(x), out = Values(state.Dequantize(DType::kF32));
    for (size_t i = 0; i < in.size(); ++i) ASSERT_NEAR(in[i], out[i], 0.0071 * 4.5);
    const QuantizedState again = Make(5001, block);
    again.Quantize(state.Dequantize(DType::kF32));
    EXPECT_EQ(Values(again.scales()).size(), static_cast<size_t>(NumBlocks(5001, block)));
  }
}

TEST_F(QuantizedStateTest, ZerosTinyAndHuge) {
  const QuantizedState state = Make(600, 256);
  state.Quantize(Tensor::Zeros({600}, DType::kF32, context_));
  EXPECT_EQ(Norm(Values(state.Dequantize(DType::kF32))), 0);
  for (const double size : {1e-40, 1e-20, 1e38}) {
    state.Quantize(Tensor::Full({600}, DType::kF32, size, context_));
    for (const double v : Values(state.Dequantize(DType::kF32))) {
      ASSERT_EQ(static_cast<float>(v), static_cast<float>(size));
    }
  }
  EXPECT_THROW(QuantizedState(Tensor::Zeros({600}, DType::kU8, context_),
                              Tensor::Zeros({2}, DType::kF32, context_), CodeMap::Signed(), 256),
               Error);
}

void CheckAdamW8bit(const Shape& shape, const AdamW8bitOptions& o) {
  const ContextPtr context = TestContext({.num_threads = 2});
  auto param = RandomParam("w", shape, DType::kF64, context, 1);
  Adam8Rule rule(static_cast<size_t>(shape.numel()));
  std::vector<double> w = Values(param->data());
  const std::vector<double> init = w;
  AdamW8bit optimizer({param}, o);
  for (int t = 1; t <= 12; ++t) {
    const Tensor g = RandomTensor(shape, DType::kF64, context, 100 + t);
    param->set_grad(g);
    optimizer.step();
    const std::vector<double> u = rule.Step(Values(g), t, o);
    const double keep = 1 - o.lr * o.weight_decay;
    for (size_t i = 0; i < w.size(); ++i)
      w[i] = o.kernel == "cpu" ? keep * w[i] - u[i] : keep * (w[i] - u[i]);
  }
  EXPECT_LT(UpdateError(Values(param->data()), w, init), 1e-4)
      << o.kernel << " " << shape << " " << o.block_size << " " << o.block_wise;
}

TEST(AdamW8bitTest, FollowsItsEquations) {
  for (const char* kernel : {"cuda", "cpu"}) {
    AdamW8bitOptions o{.lr = 1e-2, .betas = {0.8, 0.97}, .weight_decay = 0.3, .min_8bit_size = 0};
    o.kernel = kernel;
    for (const Shape& shape : AwkwardShapes()) CheckAdamW8bit(shape, o);
    o.block_size = 2048;
    CheckAdamW8bit({81, 77}, o);
    o.block_wise = false;  // one scale for the tensor, found piece by piece
    CheckAdamW8bit({81, 77}, o);
  }
}

TEST(AdamW8bitTest, SmallTensorsAndBits32AreAdamW) {
  const ContextPtr context = TestContext();
  auto a = RandomParam("w", {33, 17}, DType::kF64, context, 1);
  auto b = RandomParam("w", {33, 17}, DType::kF64, context, 1);
  AdamW8bit small({a}, {.lr = 1e-2, .weight_decay = 0.1, .kernel = "cpu"});
  AdamW full({b}, {.lr = 1e-2, .weight_decay = 0.1});
  const std::vector<double> init = Values(a->data());
  for (int t = 0; t < 10; ++t) {
    const Tensor g = RandomTensor({33, 17}, DType::kF64, context, 50 + t);
    a->set_grad(g);
    b->set_grad(g.Clone());
    small.step();
    full.step();
  }
  EXPECT_LT(UpdateError(Values(a->data()), Values(b->data()), init), 1e-13);
}

TEST(AdamW8bitTest, StateBytes) {
  const ContextPtr context = TestContext();
  auto param = RandomParam("w", {1000, 300}, DType::kF32, context, 1);
  AdamW8bit optimizer({param}, {.paged = true});
  EXPECT_EQ(optimizer.state_bytes(), 0);
  param->set_grad(RandomTensor({1000, 300}, DType::kF32, context, 2));
  optimizer.step();
  const int64_t n = 300000;
  EXPECT_EQ(optimizer.state_bytes(), 2 * n + 8 * NumBlocks(n, 256));
  EXPECT_LT(static_cast<double>(optimizer.state_bytes()) / n, 2.04);
  EXPECT_EQ(optimizer.paged_bytes(), optimizer.state_bytes());
}

TEST(AdamW8bitTest, PercentileClippingLimitsAnOutlier) {
  const ContextPtr context = TestContext();
  const auto run = [&](int64_t percentile, double outlier) {
    auto param = RandomParam("w", {20, 20}, DType::kF64, context, 1);
    AdamW8bit optimizer({param}, {.lr = 1e-2, .percentile_clipping = percentile});
    for (int t = 1; t <= 6; ++t) {
      param->set_grad(RandomTensor({20, 20}, DType::kF64, context, 7, t == 6 ? outlier : 1));
      optimizer.step();
    }
    return Values(param->data());
  };
  const std::vector<double> init = Values(RandomTensor({20, 20}, DType::kF64, context, 1));
  EXPECT_EQ(run(100, 1), run(50, 1));  // equal norms: nothing to clip
  // Clipped to the same norm, but for the rounding of the norms.
  EXPECT_LT(UpdateError(run(50, 1000), run(50, 8), init), 1e-6);
  EXPECT_NE(run(100, 1000), run(50, 1000));
}

// Too small for weights to show it: the sign of a moment that is next to nothing.
TEST(AdamW8bitTest, CodesOfTinyMoments) {
  const ContextPtr context = TestContext();
  for (const bool cuda : {true, false}) {
    auto param = RandomParam("w", {4}, DType::kF32, context, 1);
    AdamW8bitOptions o{.min_8bit_size = 0};
    o.kernel = cuda ? "cuda" : "cpu";
    AdamW8bit optimizer({param}, o);
    param->set_grad(
        Tensor::FromVector(std::vector<double>{1, -1e-9, 0, 1e-9}, {4}, context, DType::kF32));
    optimizer.step();
    EXPECT_EQ(optimizer.views()[0].state("state1").ToVector<int>(),
              (std::vector<int>{255, cuda ? 126 : 127, 127, 127}));
  }
}

// The percentile is one of the last norms, not of the first ones alone.
TEST(AdamW8bitTest, PercentileClippingFollowsTheNorms) {
  const ContextPtr context = TestContext();
  const auto run = [&](double last) {
    auto param = RandomParam("w", {20, 20}, DType::kF64, context, 1);
    AdamW8bit optimizer({param}, {.lr = 1e-2, .percentile_clipping = 1});
    for (const double size : {8.0, 1.0, 1.0, last}) {
      param->set_grad(RandomTensor({20, 20}, DType::kF64, context, 7, size));
      optimizer.step();
    }
    return Values(param->data());
  };
  const std::vector<double> init = Values(RandomTensor({20, 20}, DType::kF64, context, 1));
  EXPECT_LT(UpdateError(run(8), run(1), init), 1e-6);
}

TEST(AdamW8bitTest, ShardsThatCutBlocksComputeTheSame) {
  for (const bool block_wise : {true, false}) {
    AdamW8bitOptions o{.lr = 1e-2, .min_8bit_size = 0, .block_wise = block_wise};
    ExpectShardsEqualWhole<AdamW8bit>({33, 17}, /*cut=*/301, o, /*steps=*/4, /*tolerance=*/0);
    o.percentile_clipping = 90;  // the norm's sum is in another order
    ExpectShardsEqualWhole<AdamW8bit>({33, 17}, /*cut=*/301, o, /*steps=*/4, /*tolerance=*/1e-4);
  }
}

TEST(AdamW8bitTest, ReportsAllProblems) {
  const ContextPtr context = TestContext();
  auto param = RandomParam("w", {4}, DType::kF32, context, 1);
  try {
    AdamW8bit optimizer(
        {param},
        {.lr = -1, .bits = 4, .block_size = 100, .percentile_clipping = 0, .kernel = "gpu"});
    FAIL();
  } catch (const Error& error) {
    for (const char* part : {"lr is -1", "bits is 4", "block_size is 100",
                             "percentile_clipping is 0", "kernel is \"gpu\""}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(AdamW8bitTest, StateDictRoundTripIsBitwise) {
  const ContextPtr context = TestContext();
  auto a = RandomParam("w", {70, 80}, DType::kF32, context, 1);
  AdamW8bit first({a}, {.percentile_clipping = 50});
  const auto step = [&](AdamW8bit& optimizer, const ParameterPtr& p, uint64_t seed) {
    p->set_grad(RandomTensor({70, 80}, DType::kF32, context, seed));
    optimizer.step();
  };
  for (uint64_t t = 0; t < 3; ++t) step(first, a, t);
  auto b = std::make_shared<Parameter>("w", a->data().Clone());
  AdamW8bit second({b}, {.percentile_clipping = 50});
  ASSERT_TRUE(second.load_state_dict(first.state_dict()).ok());
  for (uint64_t t = 3; t < 6; ++t) {
    step(first, a, t);
    step(second, b, t);
  }
  EXPECT_EQ(Values(a->data()), Values(b->data()));
}

}  // namespace quantized_state_test
}  // namespace apogee::optim
