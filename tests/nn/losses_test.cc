// SPDX-License-Identifier: Apache-2.0

// Losses against their definitions in double, and operands that do not fit. Values of ordinary
// inputs and gradients are in tests/autograd/op_table.h.
#include "apogee/nn/losses.h"

#include <gmock/gmock.h>

#include <cmath>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee {
namespace losses_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;

class LossesTest : public ::testing::Test {
 protected:
  Tensor Values(const std::vector<double>& values, const Shape& shape) {
    return Tensor::FromVector(values, shape, context_);
  }
  ContextPtr context_ = TestContext({.num_threads = 2});
};

// The mean by the smoothed probabilities of -log softmax, over the targets that count.
TEST_F(LossesTest, LabelSmoothingIsAMixtureOfTargets) {
  constexpr int64_t kRows = 5, kClasses = 7;
  const Tensor logits = RandomTensor({kRows, kClasses}, "logits", context_, 3);
  const std::vector<int64_t> targets{0, 6, -100, 3, 3};
  const std::vector<double> x = logits.ToVector<double>();
  for (const double smoothing : {0.0, 0.25, 1.0}) {
    double sum = 0;
    for (size_t r = 0; r < kRows; ++r) {
      if (targets[r] < 0) continue;
      double exps = 0;
      for (size_t c = 0; c < kClasses; ++c) exps += std::exp(x[r * kClasses + c]);
      for (size_t c = 0; c < kClasses; ++c) {
        const double q =
            smoothing / kClasses + (static_cast<int64_t>(c) == targets[r] ? 1 - smoothing : 0);
        sum -= q * (x[r * kClasses + c] - std::log(exps));
      }
    }
    const nn::CrossEntropyLoss loss{.label_smoothing = smoothing};
    const Tensor ids = Tensor::FromVector(targets, {kRows}, context_);
    EXPECT_NEAR(loss(logits, ids).Item(), sum / 4, 1e-13);
  }
}

TEST_F(LossesTest, LargeLogitsAndZeroProbabilities) {
  const nn::BceWithLogitsLoss bce;
  EXPECT_NEAR(bce(Values({1000, -1000}, {2}), Values({0, 1}, {2})).Item(), 1000, 1e-9);
  EXPECT_NEAR(bce(Values({1000, -1000}, {2}), Values({1, 0}, {2})).Item(), 0, 1e-9);
  const nn::KlDivLoss kl;
  const double half = std::log(0.5);
  EXPECT_NEAR(kl(Values({half, half}, {1, 2}), Values({1, 0}, {1, 2})).Item(), -half, 1e-15);
}

TEST_F(LossesTest, ARowOfZerosHasNoDirection) {
  autograd::Parameter x("x", Values({0, 0, 3, 4}, {2, 2}));
  const Tensor loss = nn::CosineLoss()(x.value(), Values({1, 2, 6, 8}, {2, 2}));
  EXPECT_NEAR(loss.Item(), 0.5, 1e-15);
  autograd::Backward(loss);
  for (const double grad : x.grad().ToVector<double>()) EXPECT_TRUE(std::isfinite(grad));
}

TEST_F(LossesTest, OperandsThatDoNotFit) {
  const Tensor x = Values({1, 2}, {2}), y = Values({1, 2}, {1, 2});
  EXPECT_THAT([&] { nn::MseLoss()(x, y); },
              Says(AllOf(HasSubstr("mse_loss"), HasSubstr("[2] and [1, 2]"))));
  EXPECT_THAT([&] { nn::L1Loss()(x, Tensor()); }, Says(HasSubstr("the targets are undefined")));
  EXPECT_THAT([&] { nn::BceWithLogitsLoss()(x, x.To(DType::kF32)); },
              Says(HasSubstr("need one dtype")));
  const Tensor ids = Tensor::FromVector<int64_t>({0}, {1}, context_);
  EXPECT_THAT([&] { nn::CrossEntropyLoss{.label_smoothing = 1.5}(y, ids); },
              Says(HasSubstr("label_smoothing must be in [0, 1], got 1.5")));
}

}  // namespace losses_test
}  // namespace apogee
