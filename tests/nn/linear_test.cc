// SPDX-License-Identifier: Apache-2.0

// nn::Linear with parameters of other modules, and with capped results.
#include <gmock/gmock-matchers.h>

#include <cmath>

#include "apogee/nn/layers.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn {
namespace linear_test {

using testing::ExpectGradients;
using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;

// A table, and a head that is tied to it but has a bias of its owner's.
class Tied : public Module {
 public:
  explicit Tied(const LinearOptions& options)
      : table_(Register("table", std::make_shared<Embedding>(5, 3))),
        bias_(RegisterParameter("bias", {5}, Init::Normal(0, 1))),
        head(Register("head", std::make_shared<Linear>(table_->weight(), bias_, options))) {}
  Tensor Forward(const Tensor& x) override { return (*head)(x); }

 private:
  std::shared_ptr<Embedding> table_;
  ParameterPtr bias_;

 public:
  std::shared_ptr<Linear> head;
};

TEST(LinearTest, ATiedWeightWithABiasAndACap) {
  for (const std::optional<double> cap : {std::optional<double>(), std::optional(0.7)}) {
    Tied model({.soft_cap = cap});
    model.Initialize(CpuContext(), {.seed = 3, .dtype = DType::kF64});
    ASSERT_EQ(model.Parameters().size(), 2U);  // the head has none of its own
    const Tensor x = RandomTensor({2, 4, 3}, "x", CpuContext());
    const auto w = model.FindParameter("table.weight")->data().ToVector<double>();
    const auto b = model.FindParameter("bias")->data().ToVector<double>();
    const std::vector<double> in = x.ToVector<double>();
    std::vector<double> want;
    for (size_t row = 0; row < 8; ++row) {
      for (size_t o = 0; o < 5; ++o) {
        double y = b[o];
        for (size_t i = 0; i < 3; ++i) y += in[row * 3 + i] * w[o * 3 + i];
        want.push_back(cap ? *cap * std::tanh(y / *cap) : y);
      }
    }
    ExpectClose(model(x).ToVector<double>(), want, 1e-14);
    ExpectGradients({x}, [&](const std::vector<Tensor>& inputs) { return model(inputs[0]); });
  }
}

TEST(LinearTest, ATiedWeightInTheOtherLayout) {
  Linear owner(3, 5, {.layout = WeightLayout::kInOut});
  owner.Initialize(CpuContext(), {.seed = 3, .dtype = DType::kF64});
  Linear tied(owner.weight(), owner.bias(), {.layout = WeightLayout::kInOut});
  const Tensor x = RandomTensor({4, 3}, "x", CpuContext());
  EXPECT_EQ(tied(x).ToVector<double>(), owner(x).ToVector<double>());
}

TEST(LinearTest, DescribesTheCap) {
  ConfigTexts texts;
  Linear(3, 5, {.soft_cap = 30.0}).DescribeConfig(texts);
  EXPECT_EQ(texts.function, (std::map<std::string, std::string>{{"soft_cap", ConfigText(30.0)}}));
}

TEST(LinearTest, Misuse) {
  Linear owner(3, 5);
  owner.Initialize(CpuContext(), {.seed = 3});
  const auto tied = [&](const ParameterPtr& weight, const ParameterPtr& bias,
                        const LinearOptions& options = {}) {
    return [=] { Linear linear(weight, bias, options); };
  };
  EXPECT_THAT(tied(nullptr, nullptr), Says(HasSubstr("must be a parameter [out, in]")));
  EXPECT_THAT(tied(owner.bias(), nullptr, {.layout = WeightLayout::kInOut}),
              Says(HasSubstr("must be a parameter [in, out]")));
  EXPECT_THAT(tied(owner.weight(), owner.bias(), {.layout = WeightLayout::kInOut}),
              Says(HasSubstr("the bias bias [5] must be [3]")));
  EXPECT_THAT(tied(owner.weight(), owner.bias(), {.bias = false}),
              Says(HasSubstr("options.bias must be true")));
  EXPECT_THAT(tied(owner.weight(), nullptr, {.init = Init::Constant(0)}),
              Says(HasSubstr("the owner of the tied weight weight initialises it")));
  EXPECT_THAT([] { Linear linear(3, 5, {.soft_cap = 0.0}); },
              Says(HasSubstr("soft_cap must be above 0, got 0")));
  EXPECT_THAT([] { Linear linear(3, 5, {.activation = Activation::kTanh, .soft_cap = 1.0}); },
              Says(HasSubstr("soft_cap is for logits")));
}

}  // namespace linear_test
}  // namespace apogee::nn
