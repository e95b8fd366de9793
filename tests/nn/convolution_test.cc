// SPDX-License-Identifier: Apache-2.0

// The convolutional layers: parameters, first values, settings, and that they call their functions.
#include "apogee/nn/convolution.h"

#include <gmock/gmock.h>

#include <cmath>

#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::nn {
namespace convolution_test {

using ::apogee::testing::RandomTensor;
using ::apogee::testing::Says;
using ::testing::HasSubstr;
using Texts = std::map<std::string, std::string>;

// torch's bound: 1 / sqrt(the weight's size(1) times the kernel's size), for weight and bias.
void ExpectInit(Convolution& conv, const Shape& weight, int64_t out, double bound) {
  conv.Initialize(TestContext(), {.seed = 5, .dtype = DType::kF64});
  EXPECT_EQ(conv.weight()->shape(), weight);
  EXPECT_EQ(conv.bias()->shape(), Shape({out}));
  for (const auto& parameter : {conv.weight(), conv.bias()}) {
    double largest = 0, sum = 0, squares = 0;
    const std::vector<double> values = parameter->data().ToVector<double>();
    for (const double value : values) {
      largest = std::max(largest, std::abs(value));
      sum += value;
      squares += value * value;
    }
    const auto n = static_cast<double>(values.size());
    EXPECT_LE(largest, bound);
    if (n < 400) continue;
    EXPECT_GT(largest, 0.98 * bound);
    EXPECT_NEAR(sum / n, 0, 0.15 * bound);
    EXPECT_NEAR(std::sqrt(squares / n), bound / std::sqrt(3.0), 0.1 * bound);
  }
}

TEST(ConvolutionTest, ParametersAreThoseOfTorch) {
  Conv2d conv2d(16, 32, Extent(3, 5), {.groups = 2});
  ExpectInit(conv2d, {32, 8, 3, 5}, 32, 1 / std::sqrt(8.0 * 15));
  Conv1d conv1d(12, 18, 7, {.groups = 3});
  ExpectInit(conv1d, {18, 4, 7}, 18, 1 / std::sqrt(4.0 * 7));
  ConvTranspose2d up2d(16, 32, 2, {.groups = 2});
  ExpectInit(up2d, {16, 16, 2, 2}, 32, 1 / std::sqrt(16.0 * 4));
  ConvTranspose1d up1d(12, 18, 7, {.groups = 3});
  ExpectInit(up1d, {12, 6, 7}, 18, 1 / std::sqrt(6.0 * 7));
  EXPECT_EQ(Conv2d(3, 4, 3, {}, /*bias=*/false).bias(), nullptr);
  EXPECT_EQ(Conv2d(3, 4, 3, {}, /*bias=*/false).Parameters().size(), 1u);
  EXPECT_EQ(conv2d.options().groups, 2);
}

TEST(ConvolutionTest, LayersCallTheirFunctions) {
  const ContextPtr context = TestContext();
  const Tensor image = RandomTensor({2, 4, 6, 7}, "x", context);
  const Tensor sequence = RandomTensor({2, 4, 9}, "s", context);
  const ConvOptions options{.stride = 2, .padding = 1};
  const auto expect = [&](Convolution& conv, const Tensor& x, const auto& fn) {
    conv.Initialize(context, {.seed = 5, .dtype = DType::kF64});
    const Tensor want = fn(x, conv.weight()->data(), conv.bias()->data(), options);
    const Tensor got = conv(x).Detach();
    EXPECT_EQ(got.shape(), want.shape());
    EXPECT_EQ(got.ToVector<double>(), want.ToVector<double>());
  };
  Conv2d conv2d(4, 6, 3, options);
  expect(conv2d, image, autograd::Conv2d);
  Conv1d conv1d(4, 6, 3, options);
  expect(conv1d, sequence, autograd::Conv1d);
  ConvTranspose2d up2d(4, 6, 3, options);
  expect(up2d, image, autograd::ConvTranspose2d);
  ConvTranspose1d up1d(4, 6, 3, options);
  expect(up1d, sequence, autograd::ConvTranspose1d);
  const PoolOptions pool{.stride = {1}, .padding = 1, .count_padding = false};
  const auto same = [](const Tensor& got, const Tensor& want) {
    EXPECT_EQ(got.shape(), want.shape());
    EXPECT_EQ(got.ToVector<double>(), want.ToVector<double>());
  };
  same(MaxPool2d(Extent(2, 3), pool)(image), autograd::MaxPool2d(image, Extent(2, 3), pool));
  same(AvgPool2d(Extent(2, 3), pool)(image), autograd::AvgPool2d(image, Extent(2, 3), pool));
  same(MaxPool1d(3, pool)(sequence), autograd::MaxPool1d(sequence, 3, pool));
  same(AvgPool1d(3, pool)(sequence), autograd::AvgPool1d(sequence, 3, pool));
  same(Flatten()(image), image.View({2, 168}));
  same(Flatten()(image.Slice(0, 0, 1).View({168})), image.Slice(0, 0, 1).View({168, 1}));
}

TEST(ConvolutionTest, RefusesSizesThatDoNotFit) {
  EXPECT_THAT([] { Conv2d(0, 4, 3); }, Says(HasSubstr("channels must be positive, got 0 and 4")));
  EXPECT_THAT([] { Conv2d(4, 6, 3, {.groups = 4}); },
              Says(HasSubstr("groups must divide the channels 4 and 6, got 4")));
  EXPECT_THAT([] { Conv1d(4, 6, 0); }, Says(HasSubstr("kernel's size must be positive, got 0")));
  EXPECT_THAT([] { Flatten()(Tensor::Full({}, DType::kF32, 1, TestContext())); },
              Says(HasSubstr("flatten: x must have at least one dim")));
}

// A checkpoint of other settings is refused.
TEST(ConvolutionTest, SettingsAreRecorded) {
  Conv2d conv(4, 4, 3, {.stride = {1, 2}, .padding = 1, .groups = 2});
  EXPECT_EQ(ConfigOf(conv).function, (Texts{{"stride", ConfigText(std::vector<int64_t>{1, 2})},
                                            {"padding", ConfigText(std::vector<int64_t>{1, 1})},
                                            {"dilation", ConfigText(std::vector<int64_t>{1, 1})},
                                            {"groups", ConfigText(int64_t{2})}}));
  Conv2d same(4, 4, 3, {.same_padding = true});
  EXPECT_EQ(ConfigOf(same).function.at("padding"), "same");
  ConvTranspose1d up(4, 4, 3, {.stride = 3, .output_padding = 2});
  EXPECT_EQ(ConfigOf(up).function.at("output_padding"), ConfigText(std::vector<int64_t>{2, 2}));
  AvgPool2d pool(3, {.count_padding = false});
  EXPECT_EQ(ConfigOf(pool).function, (Texts{{"kernel", ConfigText(std::vector<int64_t>{3, 3})},
                                            {"stride", ConfigText(std::vector<int64_t>{3, 3})},
                                            {"padding", ConfigText(std::vector<int64_t>{0, 0})},
                                            {"count_padding", ConfigText(false)}}));
}

}  // namespace convolution_test
}  // namespace apogee::nn
