// SPDX-License-Identifier: Apache-2.0

// nn::BatchNorm on one rank: running averages, recomputing, and what is refused.
#include <gtest/gtest.h>

#include <cmath>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/recompute.h"
#include "apogee/nn/layers.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee {
namespace batch_norm_test {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using testing::RandomTensor;
using testing::Says;

TEST(BatchNormTest, EvaluatesWithRunningAverages) {
  nn::BatchNorm norm(2, {.eps = 0, .momentum = 0.5});
  const ContextPtr context = TestContext();
  norm.Initialize(context, {.dtype = DType::kF64});
  // Channel means 2 and 30; unbiased variances 2 and 200, biased 1 and 100.
  const Tensor x = Tensor::FromVector<double>({1, 20, 3, 40}, {2, 2}, context);
  EXPECT_THAT(norm(x).ToVector<double>(), Pointwise(DoubleNear(1e-14), {-1., -1., 1., 1.}));
  EXPECT_THAT(norm.Buffers()[0]->data().ToVector<double>(),
              Pointwise(DoubleNear(1e-14), {1., 15.}));
  EXPECT_THAT(norm.Buffers()[1]->data().ToVector<double>(),
              Pointwise(DoubleNear(1e-13), {1.5, 100.5}));
  norm.Train(false);
  const std::vector<double> want = {0, 5 / std::sqrt(100.5), 2 / std::sqrt(1.5),
                                    25 / std::sqrt(100.5)};
  EXPECT_THAT(norm(x).ToVector<double>(), Pointwise(DoubleNear(1e-14), want));
  EXPECT_THAT(norm.Buffers()[0]->data().ToVector<double>(),
              Pointwise(DoubleNear(1e-14), {1., 15.}));
}

TEST(BatchNormTest, RecomputingDoesNotAverageTwice) {
  const ContextPtr context = TestContext();
  const Tensor x = RandomTensor({5, 6}, "x", context, 1, DType::kF64);
  std::vector<std::vector<double>> averages;
  for (const bool recompute : {false, true}) {
    nn::BatchNorm norm(6);
    norm.Initialize(context, {.dtype = DType::kF64});
    autograd::Parameter input("x", x);
    const auto run = [&](const Tensor& in) { return autograd::Square(norm(in)); };
    const Tensor y = recompute ? autograd::Recompute(run, input.value()) : run(input.value());
    autograd::Backward(autograd::Sum(y));
    averages.push_back(norm.Buffers()[0]->data().ToVector<double>());
  }
  EXPECT_EQ(averages[0], averages[1]);
}

TEST(BatchNormTest, Misuse) {
  const ContextPtr context = TestContext();
  nn::BatchNorm norm(6);
  norm.Initialize(context, {.dtype = DType::kF64});
  const Tensor one = Tensor::Zeros({1, 6}, DType::kF64, context);
  EXPECT_THAT([&] { norm(one); }, Says(HasSubstr("their variance needs at least two")));
  EXPECT_THAT(
      [&] {
        norm(one.View({2, 3}));
      },
      Says(HasSubstr("needs [samples, 6, ..], got [2, 3]")));
  EXPECT_THAT([&] { nn::BatchNorm(3, {.momentum = 0}); }, Says(HasSubstr("momentum must be in")));
  EXPECT_THAT([&] { nn::GroupNorm(3, 8); }, Says(HasSubstr("8 channels cannot be cut into 3")));
}

}  // namespace batch_norm_test
}  // namespace apogee
