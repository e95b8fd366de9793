// SPDX-License-Identifier: Apache-2.0

// The step around the update: presence, freezing, non-finite gradients, clipping, loss scale,
// closures, what a constructor refuses.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/grad_clip.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/tests/optim/optim_fixture.h"

namespace apogee::optim {
namespace step_test {

using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string ErrorOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class StepTest : public ::testing::Test {
 protected:
  void SetGrads(uint64_t seed) {
    for (const ParameterPtr& p : {a_, b_}) {
      p->set_grad(RandomTensor(p->shape(), DType::kF64, context_, seed++));
    }
  }

  ContextPtr context_ = TestContext();
  ParameterPtr a_ = RandomParam("a", {3, 5}, DType::kF64, context_, 1);
  ParameterPtr b_ = RandomParam("b", {7}, DType::kF64, context_, 2);
};

TEST_F(StepTest, AbsentIsNotZero) {
  AdamW optimizer({a_, b_}, {.lr = 0.1, .weight_decay = 0.1});
  SetGrads(1);
  optimizer.step();
  const std::vector<double> a = Values(a_->data()), b = Values(b_->data());
  const std::vector<double> m = Values(optimizer.views()[0].state("exp_avg"));
  optimizer.zero_grad();
  b_->set_grad(Tensor::Zeros({7}, DType::kF64, context_));
  optimizer.step();
  EXPECT_EQ(Values(a_->data()), a);  // no decay, no momentum
  EXPECT_EQ(Values(optimizer.views()[0].state("exp_avg")), m);
  EXPECT_EQ(optimizer.views()[0].step(), 1);
  EXPECT_NE(Values(b_->data()), b);  // both
  EXPECT_EQ(optimizer.views()[1].step(), 2);
  EXPECT_EQ(optimizer.last_step().num_updated, 1);
}

TEST_F(StepTest, NoGradientAtAll) {
  Sgd optimizer({a_, b_}, {.lr = 0.1, .weight_decay = 0.1});
  const std::vector<double> a = Values(a_->data());
  optimizer.step();
  EXPECT_EQ(Values(a_->data()), a);
  EXPECT_EQ(optimizer.last_step().num_updated, 0);
  EXPECT_FALSE(optimizer.last_step().skip);
  EXPECT_EQ(context_->ledger().live_bytes(MemoryCategory::kOptimizerState), 0);
}

TEST_F(StepTest, ZeroGrad) {
  Sgd optimizer({a_, b_}, {});
  SetGrads(1);
  optimizer.zero_grad(/*set_to_none=*/false);
  EXPECT_EQ(Values(a_->grad()), std::vector<double>(15, 0.0));
  optimizer.zero_grad();
  EXPECT_FALSE(a_->has_grad());
}

TEST_F(StepTest, FrozenStaysAndDoesNotCount) {
  Sgd optimizer({a_, b_}, {.lr = 0.1, .weight_decay = 0.1});
  optimizer.set_step_options({.max_norm = 1});
  SetGrads(1);
  a_->set_requires_grad(false);
  const std::vector<double> a = Values(a_->data());
  optimizer.step();
  EXPECT_EQ(Values(a_->data()), a);
  EXPECT_NEAR(optimizer.last_step().grad_norm, Norm(Values(b_->grad())), 1e-12);
}

TEST_F(StepTest, NonFiniteSkips) {
  for (const double bad : {kInf, -kInf, kNan}) {
    for (const NormKind kind : {NormKind::kL2, NormKind::kL1, NormKind::kMax}) {
      AdamW optimizer({a_, b_}, {.lr = 0.1});
      optimizer.set_step_options({.norm_kind = kind});
      SetGrads(1);
      optimizer.step();
      SetGrads(3);
      SetElement(b_->grad(), 6, bad);
      const std::vector<double> a = Values(a_->data()),
                                m = Values(optimizer.views()[0].state("exp_avg"));
      optimizer.step();
      EXPECT_TRUE(optimizer.last_step().skip);
      EXPECT_EQ(optimizer.last_step().nonfinite_parameter, "b");
      EXPECT_EQ(optimizer.last_step().num_updated, 0);
      EXPECT_EQ(optimizer.num_skipped_steps(), 1);
      EXPECT_EQ(Values(a_->data()), a);
      EXPECT_EQ(Values(optimizer.views()[0].state("exp_avg")), m);
      EXPECT_EQ(optimizer.views()[0].step(), 1);
    }
  }
}

TEST_F(StepTest, NonFiniteThrowsOrProceeds) {
  Sgd optimizer({a_, b_}, {.lr = 0.1});
  SetGrads(1);
  SetElement(a_->grad(), 0, kNan);
  optimizer.set_step_options({.nonfinite = NonFinitePolicy::kThrow});
  const std::vector<double> b = Values(b_->data());
  EXPECT_THAT(ErrorOf([&] { optimizer.step(); }), HasSubstr("\"a\" is not finite"));
  EXPECT_EQ(Values(b_->data()), b);
  optimizer.set_step_options({.nonfinite = NonFinitePolicy::kProceed});
  optimizer.step();
  EXPECT_TRUE(std::isnan(Values(a_->data())[0]));
  EXPECT_FALSE(std::isnan(Values(a_->data())[1]));
  // With clipping, NaN reaches everything, as the norm is NaN.
  optimizer.set_step_options({.max_norm = 1, .nonfinite = NonFinitePolicy::kProceed});
  optimizer.step();
  EXPECT_TRUE(std::isnan(Values(b_->data())[0]));
}

TEST_F(StepTest, ClippingInTheStepEqualsClippingBefore) {
  for (const NormKind kind : {NormKind::kL2, NormKind::kL1, NormKind::kMax}) {
    for (const double max_norm : {0.5, 1e6}) {
      std::vector<std::vector<double>> results;
      for (const bool folded : {true, false}) {
        const ParameterPtr a = RandomParam("a", {3, 5}, DType::kF64, context_, 1);
        const ParameterPtr b = RandomParam("b", {7}, DType::kF64, context_, 2);
        a->set_grad(RandomTensor({3, 5}, DType::kF64, context_, 3));
        b->set_grad(RandomTensor({7}, DType::kF64, context_, 4));
        Sgd optimizer({a, b}, {.lr = 1, .momentum = 0.9});
        double norm = 0;
        if (folded) {
          optimizer.set_step_options({.max_norm = max_norm, .norm_kind = kind});
        } else {
          norm = ClipGradNorm({a, b}, {.max_norm = max_norm, .norm_kind = kind});
        }
        optimizer.step();
        if (folded) norm = optimizer.last_step().grad_norm;
        results.push_back(Values(a->data()));
        results.back().push_back(norm);
      }
      ASSERT_EQ(results[0].size(), results[1].size());
      for (size_t i = 0; i < results[0].size(); ++i)
        EXPECT_NEAR(results[0][i], results[1][i], 1e-14);
    }
  }
}

TEST_F(StepTest, LossScaleIsRemovedBeforeClipping) {
  Sgd optimizer({a_}, {.lr = 1});
  const std::vector<double> before = Values(a_->data());
  a_->set_grad(Tensor::Full({3, 5}, DType::kF64, 1024 * 0.5, context_));
  optimizer.set_step_options({.max_norm = 100, .loss_scale = 1024});
  optimizer.step();
  EXPECT_DOUBLE_EQ(optimizer.last_step().grad_norm, 0.5 * std::sqrt(15.0));
  EXPECT_EQ(optimizer.last_step().clip_factor, 1);
  for (size_t i = 0; i < 15; ++i) EXPECT_DOUBLE_EQ(Values(a_->data())[i], before[i] - 0.5);
}

TEST_F(StepTest, ClosureRunsWithGradModeOnAndReturnsTheLoss) {
  const ParameterPtr w =
      std::make_shared<Parameter>("w", Tensor::Full({}, DType::kF64, 3, context_));
  Sgd optimizer({w}, {.lr = 0.1});
  autograd::NoGradGuard no_grad;
  const std::optional<Tensor> loss = optimizer.step([&] {
    optimizer.zero_grad();
    const Tensor y = autograd::Mul(w->value(), w->value());
    autograd::Backward(y);
    return y;
  });
  ASSERT_TRUE(loss.has_value());
  EXPECT_EQ(loss->Item(), 9);
  EXPECT_NEAR(w->data().Item(), 3 - 0.1 * 6, 1e-15);
  EXPECT_FALSE(optimizer.step().has_value());
}

TEST_F(StepTest, ConstructorListsEveryProblem) {
  const std::string text =
      ErrorOf([&] { Sgd({a_}, {.lr = -1, .momentum = kNan, .dampening = 0.5, .nesterov = true}); });
  EXPECT_THAT(text, HasSubstr("lr is -1, must be at least 0"));
  EXPECT_THAT(text, HasSubstr("momentum is nan"));
  EXPECT_THAT(text, HasSubstr("nesterov needs momentum above 0"));
  EXPECT_THAT(text, HasSubstr("nesterov needs dampening 0, got 0.5"));
  EXPECT_THAT(
      ErrorOf([&] {
        Adam({a_}, {.betas = {1.0, -0.1}, .eps = -1, .weight_decay = -2});
      }),
      ::testing::AllOf(HasSubstr("betas[0] is 1, must be in [0, 1)"), HasSubstr("betas[1] is -0.1"),
                       HasSubstr("eps is -1"), HasSubstr("weight_decay is -2")));
  EXPECT_THAT(ErrorOf([&] { AdamW({a_}, {.amsgrad = true, .hf_style = true}); }),
              HasSubstr("amsgrad"));
}

TEST_F(StepTest, ConstructorRefusesParameters) {
  EXPECT_THAT(ErrorOf([&] { Sgd({a_, a_}, {}); }), HasSubstr("\"a\" is given twice"));
  EXPECT_THAT(ErrorOf([&] {
                Sgd({{.params = {a_}}, {.params = {b_, a_}}});
              }),
              HasSubstr("\"a\" is given twice"));
  EXPECT_THAT(ErrorOf([&] { Sgd(std::vector<ParameterPtr>{}, {}); }),
              HasSubstr("group 0 has no parameters"));
  EXPECT_THAT(ErrorOf([&] { Sgd(std::vector<ParamGroup<SgdOptions>>{}); }),
              HasSubstr("no parameter groups"));
  EXPECT_THAT(ErrorOf([&] { Sgd({nullptr}, {}); }), HasSubstr("null"));
  const ParameterPtr twin = RandomParam("a", {2}, DType::kF64, context_, 9);
  EXPECT_THAT(ErrorOf([&] { Sgd({a_, twin}, {}); }), HasSubstr("two parameters are named \"a\""));
}

TEST_F(StepTest, StepOptionsAreChecked) {
  Sgd optimizer({a_}, {});
  EXPECT_THAT(ErrorOf([&] { optimizer.set_step_options({.max_norm = -1, .loss_scale = 0}); }),
              ::testing::AllOf(HasSubstr("max_norm is -1"), HasSubstr("loss_scale is 0")));
}

TEST_F(StepTest, BadValuesAndGradients) {
  const auto ids = std::make_shared<Parameter>("ids", Tensor::Zeros({3}, DType::kI64, context_));
  Sgd integers({ids}, {});
  EXPECT_THAT(ErrorOf([&] { integers.step(); }), HasSubstr("needs a floating dtype, got i64"));
  const ParameterPtr unset = std::make_shared<Parameter>("unset", Shape{3});
  Sgd early({unset}, {});
  EXPECT_THAT(ErrorOf([&] { early.step(); }), HasSubstr("no value yet"));
}

TEST_F(StepTest, StridedGradient) {
  const Tensor grad = RandomTensor({5, 3}, DType::kF64, context_, 3);
  const std::vector<double> before = Values(a_->data()), g = Values(grad.Transpose(0, 1));
  a_->set_grad(grad.Transpose(0, 1));
  Sgd optimizer({a_}, {.lr = 1});
  optimizer.step();
  for (size_t i = 0; i < 15; ++i) EXPECT_DOUBLE_EQ(Values(a_->data())[i], before[i] - g[i]);
}

}  // namespace step_test
}  // namespace apogee::optim
