// SPDX-License-Identifier: Apache-2.0

// Adapters of low rank: their formulas, what they train, how they are merged, and bad options.
#include "apogee/nn/lora/lora.h"

#include <gmock/gmock-matchers.h>

#include <cmath>
#include <set>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn {
namespace lora_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::ExpectGradients;
using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;
using Values = std::vector<double>;

constexpr int64_t kIn = 5, kHidden = 4, kOut = 3, kWords = 7;

// "embed", then "up" [in, hidden] with an activation, then "down" [out, hidden].
class Net : public Module {
 public:
  Net() {
    embed_ = Register("embed", std::make_shared<Embedding>(kWords, kIn));
    up_ = Register("up", std::make_shared<Linear>(kIn, kHidden,
                                                  LinearOptions{.layout = WeightLayout::kInOut,
                                                                .activation = Activation::kTanh}));
    down_ = Register("down", std::make_shared<Linear>(kHidden, kOut));
    Initialize(CpuContext(), {.seed = 3, .dtype = DType::kF64});
  }
  Tensor Forward(const Tensor& tokens) override { return (*down_)((*up_)((*embed_)(tokens))); }
  Values Of(const std::string& name) const {
    return FindParameter(name)->data().ToVector<double>();
  }
  // Gives every factor a random value.
  void Randomize() {
    for (const ParameterPtr& parameter : Parameters()) {
      if (parameter->name().find(".lora_") == std::string::npos) continue;
      parameter->data().CopyFrom(RandomTensor(parameter->shape(), parameter->name(), CpuContext()));
    }
  }
  Linear& up() { return *up_; }

 private:
  std::shared_ptr<Embedding> embed_;
  std::shared_ptr<Linear> up_, down_;
};

Tensor Tokens() { return Tensor::FromVector<int64_t>({0, 6, 2, 2, 5, 1}, {2, 3}, CpuContext()); }

// By hand: sum over r of b[o, r] a[r, i], times scale.
double Delta(const Values& a, const Values& b, size_t rank, size_t in, size_t o, size_t i,
             double scale) {
  double sum = 0;
  for (size_t r = 0; r < rank; ++r) sum += b[o * rank + r] * a[r * in + i];
  return scale * sum;
}

TEST(LoraTest, TheFormulas) {
  for (const bool dora : {false, true}) {
    for (const bool rslora : {false, true}) {
      Net net;
      AddLora(net, {.rank = 2,
                    .alpha = 3,
                    .targets = {"up", "down"},
                    .use_rslora = rslora,
                    .use_dora = dora,
                    .rank_pattern = {{"down", 3}},
                    .alpha_pattern = {{"down", 5}}});
      net.Randomize();
      const auto layer = [&](const std::string& name, const Values& x, size_t in, size_t out,
                             size_t rank, double alpha, bool transposed) {
        const double scale = alpha / (rslora ? std::sqrt(double(rank)) : double(rank));
        const Values w = net.Of(name + ".weight"), bias = net.Of(name + ".bias");
        const Values a = net.Of(name + ".lora_A.default.weight");
        const Values b = net.Of(name + ".lora_B.default.weight");
        Values y(out);
        for (size_t o = 0; o < out; ++o) {
          double sum = 0, squares = 0;
          for (size_t i = 0; i < in; ++i) {
            const double merged =
                (transposed ? w[i * out + o] : w[o * in + i]) + Delta(a, b, rank, in, o, i, scale);
            sum += merged * x[i];
            squares += merged * merged;
          }
          if (dora) {
            sum *= net.Of(name + ".lora_magnitude_vector.default.weight")[o] / std::sqrt(squares);
          }
          y[o] = sum + bias[o];
        }
        return y;
      };
      Values want;
      const Values table = net.Of("embed.weight");
      for (const int64_t token : Tokens().ToVector<int64_t>()) {
        const auto row = table.begin() + token * kIn;
        Values h = layer("up", Values(row, row + kIn), kIn, kHidden, 2, 3, /*transposed=*/true);
        for (double& value : h) value = std::tanh(value);
        const Values y = layer("down", h, kHidden, kOut, 3, 5, /*transposed=*/false);
        want.insert(want.end(), y.begin(), y.end());
      }
      ExpectClose(net(Tokens()).ToVector<double>(), want, 1e-13);
      // Of the input, through frozen weights.
      ExpectGradients({RandomTensor({3, kIn}, "x", CpuContext())},
                      [&](const std::vector<Tensor>& in) { return net.up()(in[0]); });
    }
  }
}

TEST(LoraTest, GradientsOfFactorsAreFiniteDifferences) {
  Net net;
  AddLora(net, {.rank = 2, .alpha = 3, .targets = {"up", "down", "embed"}});
  net.Randomize();
  const auto loss = [&] { return autograd::Sum(autograd::Square(net(Tokens()))); };
  autograd::Backward(loss());
  int num_factors = 0;
  for (const ParameterPtr& parameter : net.Parameters()) {
    if (!parameter->requires_grad()) continue;
    ++num_factors;
    const Values grad = parameter->grad().ToVector<double>();
    Values values = parameter->data().ToVector<double>();
    for (size_t i = 0; i < values.size(); i += 3) {
      const double old = values[i], step = 1e-5;
      const auto at = [&](double value) {
        values[i] = value;
        parameter->data().SetValues(values);
        return loss().Item();
      };
      const double difference = (at(old + step) - at(old - step)) / (2 * step);
      at(old);
      EXPECT_NEAR(grad[i], difference, 1e-6 * (1 + std::abs(difference))) << parameter->name();
    }
  }
  EXPECT_EQ(num_factors, 6);
}

TEST(LoraTest, TheModelIsFrozenAndBeginsAsItWas) {
  Net net;
  const Tensor before = net(Tokens());
  AddLora(net, {.rank = 2, .targets = {"all-linear", "embed"}, .modules_to_save = {}, .seed = 5});
  ExpectClose(net(Tokens()).ToVector<double>(), before.ToVector<double>(), 1e-14);
  autograd::Backward(autograd::Sum(net(Tokens())));
  for (const ParameterPtr& parameter : net.Parameters()) {
    const bool factor = parameter->name().find(".lora_") != std::string::npos;
    EXPECT_EQ(parameter->requires_grad(), factor) << parameter->name();
    EXPECT_EQ(parameter->has_grad(), factor) << parameter->name();
  }
  const double bound = 1 / std::sqrt(double(kHidden));
  for (const double value : net.Of("down.lora_A.default.weight")) {
    EXPECT_LE(std::abs(value), bound);
    EXPECT_NE(value, 0);
  }
  for (const double value : net.Of("embed.lora_embedding_A.default")) EXPECT_EQ(value, 0);
}

TEST(LoraTest, BiasesAndModulesToSave) {
  const auto trained = [](const LoraOptions& options) {
    Net net;
    AddLora(net, options);
    std::set<std::string> names;
    for (const auto& [name, parameter] : AdapterTensors(net, options, "default")) {
      EXPECT_TRUE(parameter->requires_grad());
      names.insert(name);
    }
    std::set<std::string> planned;
    Net other;
    for (const auto& [name, shape] : PlannedTensors(other, options)) planned.insert(name);
    EXPECT_EQ(names, planned);
    return names;
  };
  const LoraOptions options{.rank = 2, .targets = {"up"}};
  LoraOptions with = options;
  EXPECT_THAT(trained(with), ElementsAre("up.lora_A.weight", "up.lora_B.weight"));
  with.bias = LoraBias::kLoraOnly;
  EXPECT_THAT(trained(with),
              ElementsAre("up.base_layer.bias", "up.lora_A.weight", "up.lora_B.weight"));
  with.bias = LoraBias::kAll;
  EXPECT_THAT(trained(with), ElementsAre("down.bias", "up.base_layer.bias", "up.lora_A.weight",
                                         "up.lora_B.weight"));
  with = options;
  with.modules_to_save = {"down"};
  EXPECT_THAT(trained(with),
              ElementsAre("down.bias", "down.weight", "up.lora_A.weight", "up.lora_B.weight"));
}

TEST(LoraTest, SeveralAdapters) {
  Net net;
  const Values base = net(Tokens()).ToVector<double>();
  AddLora(net, {.rank = 2, .targets = {"up"}}, "first");
  AddLora(net, {.rank = 1, .targets = {"up", "down"}}, "second");
  net.Randomize();
  const auto output = [&](const std::vector<std::string>& active) {
    SetActiveAdapters(net, active);
    return net(Tokens()).ToVector<double>();
  };
  const Values first = output({"first"}), second = output({"second"});
  EXPECT_NE(first, second);
  EXPECT_NE(output({"first", "second"}), first);
  EXPECT_EQ(output({"first"}), first);
  ExpectClose(output({}), base, 1e-14);
  AddLora(net, {.rank = 1, .targets = {"up"}, .use_dora = true}, "dora");
  EXPECT_THAT(
      [&] {
        output({"first", "dora"});
      },
      Says(HasSubstr("\"dora\" has use_dora, so no other may be active")));
  EXPECT_NE(output({"dora"}), first);
  EXPECT_THAT([&] { SetActiveAdapters(net, {"third"}); },
              Says(HasSubstr("unknown adapter \"third\"")));
  EXPECT_TRUE(net.FindParameter("up.lora_A.first.weight")->requires_grad());
  EXPECT_TRUE(net.FindParameter("up.lora_A.second.weight")->requires_grad());
}

// Also if no layer has both.
TEST(LoraTest, AFurtherAdapterLeavesWhatIsTrained) {
  Net net;
  AddLora(net, {.rank = 2, .targets = {"up"}, .modules_to_save = {"embed"}}, "first");
  AddLora(net, {.rank = 1, .targets = {"down"}}, "second");
  std::set<std::string> trained;
  for (const ParameterPtr& parameter : net.Parameters()) {
    if (parameter->requires_grad()) trained.insert(parameter->name());
  }
  EXPECT_THAT(trained,
              ElementsAre("down.lora_A.second.weight", "down.lora_B.second.weight", "embed.weight",
                          "up.lora_A.first.weight", "up.lora_B.first.weight"));
}

TEST(LoraTest, MergedWeightsComputeTheSameAndUnmergeIsExact) {
  for (const bool dora : {false, true}) {
    Net net;
    LoraOptions options{.rank = 2, .alpha = 5, .targets = {"up", "down"}, .use_dora = dora};
    if (!dora) options.targets.push_back("embed");
    AddLora(net, options);
    net.Randomize();
    const Values adapted = net(Tokens()).ToVector<double>();
    const Values up = net.Of("up.weight"), embed = net.Of("embed.weight");
    MergedAdapter merged(net, "default");
    EXPECT_NE(net.Of("up.weight"), up);
    ExpectClose(net(Tokens()).ToVector<double>(), adapted, 1e-13);
    merged.Unmerge();
    EXPECT_EQ(net.Of("up.weight"), up);
    EXPECT_EQ(net.Of("embed.weight"), embed);
    EXPECT_EQ(net(Tokens()).ToVector<double>(), adapted);
    EXPECT_THAT([&] { merged.Unmerge(); }, Says(HasSubstr("is not merged")));
  }
  Net net;
  AddLora(net, {.rank = 2, .targets = {"up"}}, "first");
  AddLora(net, {.rank = 2, .targets = {"up"}}, "second");
  EXPECT_THAT([&] { MergedAdapter(net, "first"); },
              Says(HasSubstr("has the active adapter \"second\", too")));
  EXPECT_THAT([&] { MergedAdapter(net, "frist"); }, Says(HasSubstr("did you mean \"first\"?")));
}

TEST(LoraTest, BadOptionsChangeNothing) {
  Net net;
  const auto add = [&](const LoraOptions& options) {
    return [&net, options] { AddLora(net, options); };
  };
  EXPECT_THAT(add({.targets = {"upp"}}),
              Says(AllOf(HasSubstr("unknown layer \"upp\""), HasSubstr("did you mean \"up\"?"))));
  EXPECT_THAT(add({.rank = 0, .targets = {"up"}}),
              Says(HasSubstr("rank must be in [1, 4] for \"up\" [5, 4], got 0")));
  EXPECT_THAT(add({.rank = 5, .targets = {"up"}}), Says(HasSubstr("got 5")));
  EXPECT_THAT(add({.rank = 2, .alpha = 0, .targets = {"up"}, .dropout = 1}),
              Says(AllOf(HasSubstr("alpha must be above 0 and finite, got 0"),
                         HasSubstr("dropout must be in [0, 1), got 1"))));
  EXPECT_THAT(add({.rank = 2, .targets = {"up"}, .rank_pattern = {{"down", 2}}}),
              Says(HasSubstr("rank_pattern: \"down\" matches no target")));
  EXPECT_THAT(add({.rank = 2, .targets = {"up"}, .modules_to_save = {"head"}}),
              Says(HasSubstr("modules_to_save: unknown module \"head\"")));
  EXPECT_THAT(add({.rank = 2, .targets = {}}), Says(HasSubstr("targets must name layers")));
  EXPECT_THAT(add({.rank = 2, .targets = {"embed"}, .use_dora = true}),
              Says(HasSubstr("is an embedding, for which there is neither use_dora nor dropout")));
  for (const ParameterPtr& parameter : net.Parameters()) EXPECT_TRUE(parameter->requires_grad());
  EXPECT_EQ(net.Parameters().size(), 5U);
  AddLora(net, {.rank = 2, .targets = {"up"}});
  EXPECT_THAT(add({.rank = 2, .targets = {"up"}}),
              Says(HasSubstr("has an adapter \"default\" already")));
  Net closed;
  closed.CloseTree();
  EXPECT_THAT([&] { AddLora(closed, {.rank = 2, .targets = {"up"}}); },
              Says(HasSubstr("the model is boosted")));
}

// Adds up the work of products.
class Products : public KernelListener {
 public:
  void OnKernel(const KernelCall& call) override { flops += call.flops; }
  double flops = 0;
};

// Neither for a gradient of a frozen weight, nor for one of an input that needs none.
TEST(LoraTest, ComputesNoProductForAFrozenWeight) {
  for (const bool quantize : {false, true}) {
    Net net;
    const ContextPtr context = net.up().weight()->context();
    constexpr int64_t kRank = 2;
    LoraOptions options{.rank = kRank, .targets = {"up", "down"}};
    if (quantize) options.quantize = QuantizeOptions{};
    AddLora(net, options);
    const Tensor tokens = Tensor::FromVector<int64_t>({0, 6, 2, 2, 5, 1}, {2, 3}, context);
    Products products;
    context->set_kernel_listener(&products);
    autograd::Backward(autograd::Sum(net(tokens), {0, 1, 2}));
    context->set_kernel_listener(nullptr);
    constexpr int64_t kBase = kIn * kHidden + kHidden * kOut;
    constexpr int64_t kFactors = kRank * (kIn + kHidden + kHidden + kOut);
    // Backward: the input of "down" through its weight and A; B's input; A and B themselves.
    constexpr int64_t kInputs = kHidden * kOut + kRank * (kOut + kHidden + kHidden);
    EXPECT_EQ(products.flops, 2.0 * tokens.numel() * (kBase + 2 * kFactors + kInputs));
  }
}

}  // namespace lora_test
}  // namespace apogee::nn
