// SPDX-License-Identifier: Apache-2.0

// autograd::Apply with functions of one's own, and GradCheck, which must see wrong ones.
#include "apogee/autograd/function.h"

#include <gmock/gmock.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee {
namespace function_test {

using autograd::Apply;
using autograd::GradCheck;
using autograd::Parameter;
using autograd::Tensors;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;

struct ScaledSquare {
  double factor;
  Tensors Forward(const Tensors& in, Tensors& saved) const {
    saved = {in[0]};
    return {ops::Scale(ops::Mul(in[0], in[0]), factor)};
  }
  Tensors Backward(const Tensors& grads, const Tensors& saved) const {
    return {ops::Scale(ops::Mul(grads[0], saved[0]), 2 * factor)};
  }
};

// The sum and the product of two tensors. Saves nothing for the sum.
struct SumAndProduct {
  static constexpr const char* kName = "sum_and_product";
  Tensors Forward(const Tensors& in, Tensors& saved) const {
    saved = in;
    return {ops::Add(in[0], in[1]), ops::Mul(in[0], in[1])};
  }
  Tensors Backward(const Tensors& grads, const Tensors& saved) const {
    return {ops::Add(grads[0], ops::Mul(grads[1], saved[1])),
            ops::Add(grads[0], ops::Mul(grads[1], saved[0]))};
  }
};

// What Backward returns is given.
struct Wrong {
  static constexpr const char* kName = "wrong";
  Tensors grads;
  Tensors Forward(const Tensors& in, Tensors&) const { return {ops::Scale(in[0], 2)}; }
  Tensors Backward(const Tensors&, const Tensors&) const { return grads; }
};

class FunctionTest : public ::testing::Test {
 protected:
  Tensor Random(const Shape& shape, const std::string& name) {
    return RandomTensor(shape, name, context_);
  }
  ContextPtr context_ = TestContext({.num_threads = 2});
};

TEST_F(FunctionTest, OneInputAndOneOutput) {
  const Tensor x = Random({3, 4}, "x");
  const auto result =
      GradCheck([](const Tensors& in) { return Apply(ScaledSquare{3}, in)[0]; }, {x});
  EXPECT_TRUE(result.ok()) << result.ToString();
}

TEST_F(FunctionTest, SeveralOutputsOfWhichOneIsUsed) {
  const Tensor x = Random({3, 4}, "x"), y = Random({3, 4}, "y");
  for (const size_t used : {0, 1}) {
    const auto result =
        GradCheck([=](const Tensors& in) { return Apply(SumAndProduct(), in)[used]; }, {x, y});
    EXPECT_TRUE(result.ok()) << result.ToString();
  }
  const auto both = GradCheck(
      [](const Tensors& in) {
        const Tensors out = Apply(SumAndProduct(), in);
        return autograd::Mul(out[0], out[1]);
      },
      {x, y});
  EXPECT_TRUE(both.ok()) << both.ToString();
}

TEST_F(FunctionTest, AnInputWithoutAGradientGetsNone) {
  Parameter x("x", Random({4}, "x"));
  const Tensor constant = Random({4}, "constant");
  autograd::Backward(autograd::Sum(Apply(SumAndProduct(), {constant, x.value()})[1]));
  EXPECT_EQ(x.grad().ToVector<double>(), constant.ToVector<double>());
  EXPECT_EQ(autograd::MetaOf(Apply(SumAndProduct(), {constant, constant})[0]), nullptr);
}

TEST_F(FunctionTest, GradCheckSeesWrongGradients) {
  const Tensor x = Random({3}, "x");
  const auto check = [&](const Tensors& grads) {
    return GradCheck([&](const Tensors& in) { return Apply(Wrong{grads}, in)[0]; }, {x});
  };
  const auto result = check({Tensor::Full({3}, DType::kF64, 2.1, context_)});
  EXPECT_FALSE(result.ok());
  EXPECT_GT(result.error, 0.01);
  EXPECT_FALSE(check({Tensor::Full({3}, DType::kF64, NAN, context_)}).ok());
  EXPECT_THAT(check({Tensor()}).ToString(), HasSubstr("input 0 got no gradient"));
  EXPECT_THAT([&] { GradCheck([](const Tensors& in) { return in[0]; }, {x.To(DType::kF32)}); },
              Says(HasSubstr("input 0 must be f64")));
}

TEST_F(FunctionTest, WhatDoesNotFitIsNamed) {
  Parameter x("x", Random({3}, "x"));
  const auto backward = [&](const Tensors& grads) {
    return [&, grads] { autograd::Backward(autograd::Sum(Apply(Wrong{grads}, {x.value()})[0])); };
  };
  EXPECT_THAT(backward({}), Says(HasSubstr("wrong: Backward returned 0 gradients for 1 inputs")));
  EXPECT_THAT(backward({Random({4}, "g")}),
              Says(AllOf(HasSubstr("wrong"), HasSubstr("[4]"), HasSubstr("[3]"))));
  EXPECT_THAT([&] { Apply(Wrong(), {Tensor()}); }, Says(HasSubstr("wrong: input 0 is undefined")));
  struct Nothing {
    Tensors Forward(const Tensors&, Tensors&) const { return {}; }
    Tensors Backward(const Tensors&, const Tensors&) const { return {}; }
  };
  EXPECT_THAT([&] { Apply(Nothing(), {x.value()}); }, Says(HasSubstr("returned no tensor")));
}

}  // namespace function_test
}  // namespace apogee
