// SPDX-License-Identifier: Apache-2.0

// Convolutions and pools: bad inputs, halves of backward, dtypes of gradients. Values and gradients
// are in op_table_convolution.cc.
#include "apogee/autograd/functions/convolution.h"

#include <gmock/gmock.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::autograd {
namespace convolution_test {

using ::apogee::testing::RandomTensor;
using ::apogee::testing::Says;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ConvolutionTest : public ::testing::Test {
 protected:
  Tensor Ones(const Shape& shape, DType dtype = DType::kF32) {
    return Tensor::Full(shape, dtype, 1, context_);
  }
  // conv2d of ones of these shapes, with a bias of as many elements as the weight has rows.
  std::function<void()> Conv(const Shape& x, const Shape& weight, const ConvOptions& options = {}) {
    return [=, this] { Conv2d(Ones(x), Ones(weight), Ones({weight[0]}), options); };
  }
  std::function<void()> Transposed(const Shape& x, const Shape& weight,
                                   const ConvOptions& options = {}) {
    return [=, this] { ConvTranspose2d(Ones(x), Ones(weight), {}, options); };
  }
  ContextPtr context_ = TestContext({.num_threads = 2});
};

TEST_F(ConvolutionTest, RefusesOperandsThatDoNotFit) {
  EXPECT_THAT(Conv({3, 8, 8}, {4, 3, 3, 3}),
              Says(HasSubstr("conv2d: x must be [samples, channels, height, width], got shape "
                             "[3, 8, 8]")));
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 3, 3}),
              Says(AllOf(HasSubstr("2 kernel sizes"), HasSubstr("[4, 3, 3]"))));
  EXPECT_THAT(
      [&] {
        Conv1d(Ones({1, 3, 8, 8}), Ones({4, 3, 3}), {});
      },
      Says(HasSubstr("conv1d: x must be [samples, channels, length]")));
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 2, 3, 3}),
              Says(AllOf(HasSubstr("[1, 3, 8, 8] has 3 channels"), HasSubstr("is for 2"))));
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 3, 0, 3}), Says(HasSubstr("[4, 3, 0, 3] is empty")));
  EXPECT_THAT(Conv({1, 3, 0, 8}, {4, 3, 1, 3}, {.padding = 1}),
              Says(HasSubstr("x [1, 3, 0, 8] is empty; only the number of samples may be 0")));
  EXPECT_THAT(Conv({1, 0, 8, 8}, {4, 0, 3, 3}), Says(HasSubstr("x [1, 0, 8, 8] is empty")));
  EXPECT_THAT(
      [&] {
        Conv2d(Ones({1, 3, 8, 8}), Ones({4, 3, 3, 3}), Ones({3}));
      },
      Says(AllOf(HasSubstr("the bias must be [4]"), HasSubstr("got [3]"))));
  EXPECT_THAT(
      [&] {
        Conv2d(Ones({1, 3, 8, 8}), Ones({4, 3, 3, 3}, DType::kF64), {});
      },
      Says(AllOf(HasSubstr("conv2d: operands need one dtype"), HasSubstr("f32 and f64"))));
  EXPECT_THAT(
      [&] {
        Conv2d(Ones({1, 3, 8, 8}), Ones({4, 3, 3, 3}), Ones({4}, DType::kBF16));
      },
      Says(HasSubstr("f32 and bf16")));
  EXPECT_THAT(
      [&] {
        Conv2d(Ones({1, 3, 8, 8}, DType::kI64), Ones({4, 3, 3, 3}), {});
      },
      Says(HasSubstr("x must be floating, got i64")));
  EXPECT_THAT([&] { Conv2d(Tensor(), Ones({4, 3, 3, 3}), {}); }, Says(HasSubstr("x is undefined")));
  EXPECT_THAT(
      [&] {
        Conv2d(Ones({1, 3, 8, 8}), Tensor(), {});
      },
      Says(HasSubstr("the weight is undefined")));
}

TEST_F(ConvolutionTest, RefusesOptionsThatDoNotFit) {
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 3, 3, 3}, {.stride = {0, 1}}),
              Says(HasSubstr("the stride along the height is 0, must be at least 1")));
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 3, 3, 3}, {.dilation = {1, 0}}),
              Says(HasSubstr("the dilation along the width is 0")));
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 3, 3, 3}, {.padding = -1}),
              Says(HasSubstr("the padding along the height is -1")));
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 3, 3, 3}, {.groups = 0}), Says(HasSubstr("groups is 0")));
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 1, 3, 3}, {.groups = 2}),
              Says(HasSubstr("the 3 channels of x [1, 3, 8, 8] are not divisible by groups 2")));
  EXPECT_THAT(Conv({1, 4, 8, 8}, {5, 2, 3, 3}, {.groups = 2}),
              Says(HasSubstr("the 5 output channels")));
  EXPECT_THAT(Conv({1, 3, 8, 4}, {4, 3, 3, 7}, {.padding = 1}),
              Says(HasSubstr("the kernel covers 7 places along the width (size 7, dilation 1), but "
                             "the padded input has only 6")));
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 3, 3, 2}, {.same_padding = true}),
              Says(AllOf(HasSubstr("a kernel of 2"), HasSubstr("would be asymmetric"),
                         HasSubstr("use an odd kernel"))));
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 3, 3, 3}, {.stride = 2, .same_padding = true}),
              Says(HasSubstr("same_padding needs stride 1")));
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 3, 3, 3}, {.padding = 1, .same_padding = true}),
              Says(HasSubstr("no padding of its own")));
  EXPECT_THAT(Conv({1, 3, 8, 8}, {4, 3, 3, 3}, {.output_padding = 1}),
              Says(HasSubstr("output_padding is for transposed convolutions")));
  EXPECT_THAT(
      [&] {
        Conv1d(Ones({1, 3, 8}), Ones({4, 3, 3}), {}, {.stride = {1, 2}});
      },
      Says(HasSubstr("stride of a sequence is one number, got {1, 2}")));
  EXPECT_EQ(
      Conv2d(Ones({1, 1, 4, 5}), Ones({1, 1, 2, 3}), {}, {.same_padding = true, .dilation = {2, 1}})
          .shape(),
      Shape({1, 1, 4, 5}));
}

TEST_F(ConvolutionTest, TransposedOnesRefuseWhatDoesNotFit) {
  EXPECT_THAT(Transposed({1, 3, 8, 8}, {3, 4, 3, 3}, {.stride = 2, .output_padding = {0, 2}}),
              Says(AllOf(HasSubstr("output_padding along the width is 2"),
                         HasSubstr("less than the stride 2"))));
  EXPECT_THAT(Transposed({1, 3, 8, 8}, {4, 3, 3, 3}),
              Says(AllOf(HasSubstr("has 3 channels"), HasSubstr("is for 4"))));
  EXPECT_THAT(Transposed({1, 3, 8, 8}, {3, 4, 3, 3}, {.same_padding = true}),
              Says(HasSubstr("same_padding is for convolutions that are not transposed")));
  EXPECT_THAT(Transposed({1, 3, 1, 8}, {3, 4, 2, 3}, {.padding = 1}),
              Says(HasSubstr("gives no output along the height")));
  EXPECT_THAT(
      [&] {
        ConvTranspose1d(Ones({1, 4, 8}), Ones({4, 3, 3}), Ones({3}), {.groups = 2});
      },
      Says(HasSubstr("the bias must be [6]")));
}

TEST_F(ConvolutionTest, PoolsRefuseWhatDoesNotFit) {
  const Tensor x = Ones({1, 2, 5, 6});
  EXPECT_THAT(
      [&] {
        MaxPool1d(Ones({1, 2, 0}), 2, {.padding = 1});
      },
      Says(HasSubstr("max_pool1d: x [1, 2, 0] is empty")));
  EXPECT_THAT([&] { MaxPool2d(x, 3, {.padding = 2}); },
              Says(AllOf(HasSubstr("max_pool2d: the padding along the height is 2"),
                         HasSubstr("at most half of the kernel's 3"))));
  EXPECT_THAT([&] { AvgPool2d(x, 0); }, Says(HasSubstr("avg_pool2d: the kernel's height is 0")));
  EXPECT_THAT([&] { MaxPool2d(x, 2, {.stride = {0}}); },
              Says(HasSubstr("the stride along the height is 0")));
  EXPECT_THAT([&] { AvgPool2d(x, 7); },
              Says(HasSubstr("the kernel covers 7 places along the height")));
  EXPECT_THAT([&] { AvgPool1d(x, 2); },
              Says(HasSubstr("avg_pool1d: x must be [samples, channels, length]")));
  EXPECT_THAT(
      [&] {
        MaxPool1d(Ones({1, 2, 5}), 9, {.padding = 1});
      },
      Says(HasSubstr("along the length")));
}

// The half of the weights may run later; together they are the whole.
TEST_F(ConvolutionTest, BackwardInHalves) {
  for (const bool transposed : {false, true}) {
    const auto run = [&](bool halves) {
      Parameter x("x", RandomTensor({2, 4, 7, 5}, "x", context_));
      Parameter weight("weight", RandomTensor({4, 4, 3, 3}, "w", context_));
      Parameter bias("bias", RandomTensor({4}, "b", context_));
      const Tensor y = transposed ? ConvTranspose2d(x.value(), weight.value(), bias.value())
                                  : Conv2d(x.value(), weight.value(), bias.value());
      const Tensor dy = RandomTensor(y.shape(), "dy", context_);
      if (halves) {
        DeferredWeightGrads later;
        Backward(y, {.grad = dy, .deferred = &later});
        EXPECT_TRUE(x.grad().defined());
        EXPECT_FALSE(weight.grad().defined() || bias.grad().defined());
        EXPECT_FALSE(later.empty());
        later.Run();
      } else {
        Backward(y, {.grad = dy});
      }
      return std::vector{x.grad().ToVector<double>(), weight.grad().ToVector<double>(),
                         bias.grad().ToVector<double>()};
    };
    EXPECT_EQ(run(true), run(false)) << transposed;
  }
}

// Gradients have the dtype that the owner of the weight asks for, without a rounding in between.
TEST_F(ConvolutionTest, GradientsInAWiderDType) {
  for (const bool transposed : {false, true}) {
    Parameter x("x", Ones({300, 1, 1, 1}, DType::kBF16));
    Parameter weight("weight", Ones({1, 1, 1, 1}, DType::kBF16));
    Parameter bias("bias", Ones({1}, DType::kBF16));
    weight.set_grad_dtype(DType::kF32);
    bias.set_grad_dtype(DType::kF32);
    const ConvOptions options{.out_dtype = DType::kF32, .input_grad_dtype = DType::kF32};
    const auto conv = transposed ? ConvTranspose2d : Conv2d;
    EXPECT_EQ(conv(x.value(), weight.value(), bias.value(), options).dtype(), DType::kF32);
    const Tensor y = conv(x.value(), weight.value(), bias.value(), {});
    EXPECT_EQ(y.dtype(), DType::kBF16);
    Backward(y, {.grad = Tensor::Full(y.shape(), DType::kBF16, 1.0078125, context_)});
    EXPECT_EQ(weight.grad().dtype(), DType::kF32);
    EXPECT_EQ(weight.grad().Item(), 302.34375);
    EXPECT_EQ(bias.grad().dtype(), DType::kF32);
    EXPECT_EQ(bias.grad().Item(), 302.34375);
  }
}

// A strided x and gradient are copied first.
TEST_F(ConvolutionTest, TakesStridedOperands) {
  const Tensor x = RandomTensor({5, 7, 3, 2}, "x", context_);
  const Tensor weight = RandomTensor({4, 3, 3, 3}, "w", context_);
  testing::ExpectGradients({x, weight}, [](const std::vector<Tensor>& in) {
    const Tensor images = Permute(in[0], {3, 2, 1, 0});
    return Permute(AvgPool2d(MaxPool2d(Conv2d(images, in[1], {}), 1), 2), {1, 0, 3, 2});
  });
}

}  // namespace convolution_test
}  // namespace apogee::autograd
