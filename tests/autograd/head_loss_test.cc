// SPDX-License-Identifier: Apache-2.0

// The head's product and cross entropy in chunks against the product and cross entropy of whole
// logits, and against finite differences.
#include "apogee/autograd/head/head_loss.h"

#include <gmock/gmock-matchers.h>

#include <cmath>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::autograd {
namespace head_loss_test {

using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;

constexpr int64_t kWidth = 5, kWords = 13, kIgnored = -100;

struct Case {
  DType dtype = DType::kF64;
  HeadLossOptions options = HeadLossOptions();
  std::vector<int64_t> targets{3, kIgnored, 12, 0, 7, 7, kIgnored};  // 7 tokens: a prime
  double grad = 1;                                                   // of the loss
};

struct Result {
  double loss;
  std::vector<double> dx, dweight;
};

class HeadLossTest : public ::testing::Test {
 protected:
  // `chunked`: as HeadCrossEntropy; else of whole logits.
  Result Run(const Case& test, bool chunked, bool split_backward = false) const {
    const bool out_in = test.options.layout == WeightLayout::kOutIn;
    const auto rows = static_cast<int64_t>(test.targets.size());
    Parameter x("x", RandomTensor({1, rows, kWidth}, "x", context_, 1, test.dtype));
    const Shape shape = out_in ? Shape{kWords, kWidth} : Shape{kWidth, kWords};
    Parameter weight("w", RandomTensor(shape, "w", context_, 1, test.dtype));
    const Tensor targets = Tensor::FromVector<int64_t>(test.targets, {1, rows}, context_);
    Tensor loss;
    if (chunked) {
      loss = HeadCrossEntropy(x.value(), weight.value(), targets, test.options);
    } else {
      Tensor logits = Linear(x.value(), weight.value(), {}, {.layout = test.options.layout});
      if (test.options.soft_cap) logits = SoftCap(logits, *test.options.soft_cap);
      loss = CrossEntropy(logits, targets, kIgnored, test.options.label_smoothing);
    }
    const Tensor grad = Tensor::Full({}, loss.dtype(), test.grad, context_);
    DeferredWeightGrads deferred;
    Backward(loss, {.grad = grad, .deferred = split_backward ? &deferred : nullptr});
    if (split_backward) {
      EXPECT_FALSE(weight.has_grad());
      deferred.Run();
    }
    return {loss.Item(), x.grad().ToVector<double>(), weight.grad().ToVector<double>()};
  }

  // Relative to the largest gradient.
  static void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                         double tolerance) {
    ASSERT_EQ(got.size(), want.size());
    double largest = 0;
    for (const double value : want) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], tolerance * largest) << "element " << i;
    }
  }

  void ExpectSame(const Case& test, double tolerance, bool split_backward = false) const {
    const Result want = Run(test, false), got = Run(test, true, split_backward);
    EXPECT_NEAR(got.loss, want.loss, tolerance * std::abs(want.loss));
    ExpectNear(got.dx, want.dx, tolerance);
    ExpectNear(got.dweight, want.dweight, tolerance);
  }

  ContextPtr context_ = TestContext({.num_threads = 2});
};

TEST_F(HeadLossTest, AnyNumberOfChunksGivesTheLossAndGradientsOfWholeLogits) {
  for (const int64_t chunks : {1, 2, 3, 5, 7, 100}) {
    for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
      for (const double smoothing : {0.0, 0.3}) {
        for (const std::optional<double> cap : {std::optional<double>(), std::optional(2.0)}) {
          SCOPED_TRACE(::testing::Message() << chunks << " chunks, smoothing " << smoothing);
          ExpectSame({.options = {.num_pieces = chunks,
                                  .layout = layout,
                                  .soft_cap = cap,
                                  .label_smoothing = smoothing}},
                     Tolerance(DType::kF64, ErrorKind::kGemm));
        }
      }
    }
  }
}

TEST_F(HeadLossTest, EveryDTypeRoundsAsWholeLogitsDo) {
  for (const DType dtype : kFloats) {
    for (const double grad : {1.0, 0.25, 3.0}) {
      SCOPED_TRACE(::testing::Message() << DTypeName(dtype) << ", gradient " << grad);
      ExpectSame({.dtype = dtype, .options = {.num_pieces = 3}, .grad = grad},
                 Tolerance(dtype, ErrorKind::kGemm));
    }
  }
}

// With a loss scale whole logits keep gradients of 1e-6; chunks are computed before it is known.
TEST_F(HeadLossTest, SmallGradientsSurviveInF16) {
  constexpr double kScale = 65536;
  std::vector<int64_t> targets(int64_t{1} << 18);
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<int64_t>(i % kWords);
  Case test{.dtype = DType::kF16, .options = {.num_pieces = 3}, .targets = targets, .grad = kScale};
  const Result got = Run(test, true);
  test.dtype = DType::kF64;
  const Result want = Run(test, false);
  const double tolerance = 4 * Tolerance(DType::kF16, ErrorKind::kGemm);  // x and w are rounded
  ExpectNear(got.dx, want.dx, tolerance);
  ExpectNear(got.dweight, want.dweight, tolerance);
}

TEST_F(HeadLossTest, FiniteDifferences) {
  const Tensor targets = Tensor::FromVector<int64_t>({1, 9, kIgnored, 3, 3}, {5}, context_);
  testing::ExpectGradients(
      {RandomTensor({5, kWidth}, "x", context_), RandomTensor({kWords, kWidth}, "w", context_)},
      [&](const std::vector<Tensor>& in) {
        return HeadCrossEntropy(in[0], in[1], targets, {.num_pieces = 2, .soft_cap = 3});
      });
}

TEST_F(HeadLossTest, WithoutAnyTargetTheLossIsNanAndGradientsAreZero) {
  const Case test{.options = {.num_pieces = 2}, .targets = {kIgnored, kIgnored, kIgnored}};
  const Result got = Run(test, true);
  EXPECT_TRUE(std::isnan(got.loss));
  for (const double value : got.dx) EXPECT_EQ(value, 0);
  for (const double value : got.dweight) EXPECT_EQ(value, 0);
}

TEST_F(HeadLossTest, WeightGradientsCanWait) {
  ExpectSame({.options = {.num_pieces = 3}, .grad = 3}, Tolerance(DType::kF64, ErrorKind::kGemm),
             /*split_backward=*/true);
}

TEST_F(HeadLossTest, TheGraphCanBeWalkedTwice) {
  Parameter x("x", RandomTensor({4, kWidth}, "x", context_));
  Parameter weight("w", RandomTensor({kWords, kWidth}, "w", context_));
  weight.set_requires_grad(false);
  const Tensor targets = Tensor::FromVector<int64_t>({1, 9, 2, 3}, {4}, context_);
  const Tensor loss = HeadCrossEntropy(x.value(), weight.value(), targets, {.num_pieces = 2});
  EXPECT_EQ(NumTargetsOf(loss), 4);
  const Tensor three = Tensor::Full({}, loss.dtype(), 3, context_);
  Backward(loss, {.grad = three, .retain_graph = true});
  const std::vector<double> once = x.grad().ToVector<double>();
  Backward(loss, {.grad = three});
  const std::vector<double> twice = x.grad().ToVector<double>();
  for (size_t i = 0; i < once.size(); ++i) EXPECT_DOUBLE_EQ(twice[i], 2 * once[i]);
  EXPECT_FALSE(weight.has_grad());
  EXPECT_THAT([&] { Backward(loss, {.grad = three}); }, Says(HasSubstr("retain_graph")));
}

TEST_F(HeadLossTest, OneChunkOfLogitsExistsAtATime) {
  constexpr int64_t kRows = 96, kMany = 4096;
  const Tensor targets = Tensor::Full({kRows}, DType::kI64, 5, context_);
  int64_t peaks[2];
  for (const int64_t chunks : {1, 8}) {
    Parameter x("x", RandomTensor({kRows, kWidth}, "x", context_, 1, DType::kF32));
    Parameter weight("w", RandomTensor({kMany, kWidth}, "w", context_, 1, DType::kF32));
    context_->ledger().ResetPeaks();
    const int64_t before = context_->ledger().live_bytes(MemoryCategory::kActivation);
    Backward(HeadCrossEntropy(x.value(), weight.value(), targets, {.num_pieces = chunks}));
    peaks[chunks > 1] = context_->ledger().peak_bytes(MemoryCategory::kActivation) - before;
  }
  constexpr int64_t kLogits = kRows * kMany * 4;
  EXPECT_GE(peaks[0], kLogits);
  EXPECT_LT(peaks[1], kLogits / 8 + kLogits / 16);
}

TEST_F(HeadLossTest, OperandsThatDoNotFitThrow) {
  const Tensor x = RandomTensor({4, kWidth}, "x", context_);
  const Tensor weight = RandomTensor({kWords, kWidth}, "w", context_);
  const auto ids = [&](const std::vector<int64_t>& values) {
    return Tensor::FromVector<int64_t>(values, {static_cast<int64_t>(values.size())}, context_);
  };
  EXPECT_THAT(
      [&] {
        HeadCrossEntropy(x, weight, ids({1, 2, 3, 4}), {.num_pieces = 0});
      },
      Says(HasSubstr("num_pieces must be at least 1, got 0")));
  EXPECT_THAT([&] { HeadCrossEntropy(x, weight, ids({1, 2, 3}), {}); }, Says(HasSubstr("do not")));
  EXPECT_THAT(
      [&] {
        HeadCrossEntropy(x, weight, ids({1, 2, 3, 4}), {.layout = WeightLayout::kInOut});
      },
      Says(HasSubstr("do not fit")));
  EXPECT_THAT(
      [&] {
        HeadCrossEntropy(x, weight, ids({1, 2, 3, kWords}), {.num_pieces = 2});
      },
      Says(HasSubstr("13")));
  EXPECT_THAT(
      [&] {
        HeadCrossEntropy(x, weight, ids({1, 2, 3, 4}), {.label_smoothing = 2});
      },
      Says(HasSubstr("label_smoothing must be in [0, 1]")));
}

}  // namespace head_loss_test
}  // namespace apogee::autograd
