// SPDX-License-Identifier: Apache-2.0

// LOMO and the fused backward that it shares with AdaLomo: updates inside backward, freed
// gradients, one decision for all parameters, refusals.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/optim/factored/adalomo.h"
#include "apogee/optim/momentum/lomo.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::optim {
namespace fused_backward_test {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Three linear layers and a tied scale that every one of them uses.
struct Net {
  explicit Net(const ContextPtr& ctx, DType dtype = DType::kF64) : context(ctx) {
    for (int i = 0; i < 3; ++i) {
      const int64_t out = i == 1 ? 40 : 12, in = i == 2 ? 40 : 12;
      params.push_back(RandomParam(internal::Concat("w", i), {out, in}, dtype, context,
                                   static_cast<uint64_t>(i + 1)));
    }
    params.push_back(RandomParam("tied", {}, dtype, context, 9));
  }
  Tensor Loss(uint64_t seed, double factor = 1) const {
    const DType dtype = params[0]->data().dtype();
    Tensor x = RandomTensor({6, 12}, dtype, context, seed);
    for (int i = 0; i < 3; ++i) {
      x = autograd::Mul(autograd::Linear(x, params[static_cast<size_t>(i)]->value(), Tensor()),
                        params[3]->value());
    }
    return autograd::Scale(autograd::Mean(autograd::Mul(x, x)), factor);
  }
  std::vector<std::vector<double>> Weights() const {
    std::vector<std::vector<double>> weights;
    for (const ParameterPtr& p : params) weights.push_back(Values(p->data()));
    return weights;
  }
  ContextPtr context;
  std::vector<ParameterPtr> params;
};

std::string MessageOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Lomo or AdaLomo.
template <typename T>
class FusedBackwardTest : public ::testing::Test {};
using Optimizers = ::testing::Types<Lomo, AdaLomo>;
TYPED_TEST_SUITE(FusedBackwardTest, Optimizers);

TYPED_TEST(FusedBackwardTest, EqualsStepAfterBackward) {
  for (const double max_norm : {0.0, 0.05}) {
    const ContextPtr context = TestContext();
    Net fused(context), plain(context);
    TypeParam a(fused.params, {.lr = 0.01, .weight_decay = 0.1, .clip_grad_value = 0.02});
    TypeParam b(plain.params, {.lr = 0.01, .weight_decay = 0.1, .clip_grad_value = 0.02});
    a.set_step_options({.max_norm = max_norm, .loss_scale = 1024});
    b.set_step_options({.max_norm = max_norm});
    bool clipped = false;
    for (uint64_t step = 0; step < 4; ++step) {
      a.fused_backward(fused.Loss(step));
      a.step();
      autograd::Backward(plain.Loss(step));
      b.step();
      b.zero_grad();
      EXPECT_NEAR(a.last_step().grad_norm, b.last_step().grad_norm, 1e-12);
      EXPECT_NEAR(a.last_step().clip_factor, b.last_step().clip_factor, 1e-12);
      EXPECT_EQ(a.last_step().num_updated, 4);
      clipped = clipped || a.last_step().clip_factor < 1;
    }
    EXPECT_EQ(clipped, max_norm > 0);
    for (size_t p = 0; p < 4; ++p) {
      for (size_t i = 0; i < fused.Weights()[p].size(); ++i) {
        EXPECT_NEAR(fused.Weights()[p][i], plain.Weights()[p][i], 1e-12);
      }
    }
  }
}

// While an earlier layer's gradient is computed, the later layer has already moved and its gradient
// is gone.
TYPED_TEST(FusedBackwardTest, UpdatesBeforeTheEarlierLayersBackward) {
  for (const bool two_pass : {false, true}) {
    const ContextPtr context = TestContext();
    Net net(context);
    TypeParam optimizer(net.params, {.lr = 0.01});
    if (!two_pass) optimizer.set_step_options({.nonfinite = NonFinitePolicy::kProceed});
    const std::vector<std::vector<double>> before = net.Weights();
    int calls = 0;
    const int passes = two_pass ? 2 : 1;
    // Runs when the gradient of layer 1 is complete, before that of layer 0 is computed.
    net.params[1]->AddGradHook([&](Parameter&) {
      ++calls;
      if (calls < passes) {
        EXPECT_EQ(net.Weights(), before);  // the first pass only looks
        return;
      }
      EXPECT_NE(Values(net.params[2]->data()), before[2]);
      EXPECT_EQ(Values(net.params[1]->data()), before[1]);
      EXPECT_EQ(Values(net.params[0]->data()), before[0]);
      EXPECT_FALSE(net.params[2]->has_grad());
      EXPECT_FALSE(net.params[0]->has_grad());
    });
    optimizer.fused_backward(net.Loss(1));
    EXPECT_EQ(calls, passes);
    for (const ParameterPtr& p : net.params) EXPECT_FALSE(p->has_grad());
    for (size_t p = 0; p < 4; ++p) EXPECT_NE(net.Weights()[p], before[p]);
    optimizer.step();
    EXPECT_EQ(optimizer.last_step().num_updated, 4);
  }
}

// One parameter's gradient lives at a time, beside the one in flight.
TYPED_TEST(FusedBackwardTest, GradientMemoryIsThatOfOneParameter) {
  const ContextPtr context = TestContext();
  Net net(context, DType::kF32);
  TypeParam optimizer(net.params, {.lr = 0.01});
  optimizer.set_step_options({.max_norm = 1});
  for (uint64_t step = 0; step < 3; ++step) {
    const Tensor loss = net.Loss(step);
    context->ledger().ResetPeaks();
    optimizer.fused_backward(loss);
    optimizer.step();
  }
  constexpr int64_t kLargest = 40 * 12 * 4;
  EXPECT_GE(context->ledger().peak_bytes(MemoryCategory::kGradient), kLargest);
  EXPECT_LE(context->ledger().peak_bytes(MemoryCategory::kGradient), kLargest + 64);
  EXPECT_EQ(context->ledger().live_bytes(MemoryCategory::kGradient), 0);
}

// Nothing moves, whichever layer's gradient is not finite; the next step is an ordinary one.
TYPED_TEST(FusedBackwardTest, NonFiniteGradientSkipsAllParameters) {
  for (const double max_norm : {0.0, 1.0}) {
    const ContextPtr context = TestContext();
    Net net(context), reference(context);
    TypeParam optimizer(net.params, {.lr = 0.01}), expected(reference.params, {.lr = 0.01});
    optimizer.set_step_options({.max_norm = max_norm});
    expected.set_step_options({.max_norm = max_norm});
    const std::vector<std::vector<double>> before = net.Weights();
    HookHandle hook = net.params[0]->AddGradHook([](Parameter& p) { p.grad().Fill(kNan); });
    optimizer.fused_backward(net.Loss(1));
    EXPECT_EQ(net.Weights(), before);
    optimizer.step();
    EXPECT_TRUE(optimizer.last_step().skip);
    EXPECT_EQ(optimizer.last_step().nonfinite_parameter, "w0");
    EXPECT_EQ(optimizer.num_skipped_steps(), 1);
    EXPECT_EQ(optimizer.views()[2].step(), 0);
    for (const ParameterPtr& p : net.params) EXPECT_FALSE(p->has_grad());

    hook.Remove();
    optimizer.fused_backward(net.Loss(2));
    optimizer.step();
    expected.fused_backward(reference.Loss(2));
    expected.step();
    EXPECT_EQ(net.Weights(), reference.Weights());
  }
}

TYPED_TEST(FusedBackwardTest, ThrowPolicyThrowsInStep) {
  Net net(TestContext());
  TypeParam optimizer(net.params, {.lr = 0.01});
  optimizer.set_step_options({.nonfinite = NonFinitePolicy::kThrow});
  optimizer.fused_backward(net.Loss(1, kNan));
  EXPECT_THAT(MessageOf([&] { optimizer.step(); }),
              HasSubstr("is not finite; the weights were left alone"));
}

TYPED_TEST(FusedBackwardTest, AccumulationIsRefusedWithTheReason) {
  Net net(TestContext());
  TypeParam optimizer(net.params, {.lr = 0.01});
  optimizer.fused_backward(net.Loss(1));
  const std::vector<std::vector<double>> after = net.Weights();
  EXPECT_THAT(MessageOf([&] { optimizer.fused_backward(net.Loss(2)); }),
              AllOf(HasSubstr("twice without step()"),
                    HasSubstr("cannot be accumulated: use one larger batch")));
  EXPECT_EQ(net.Weights(), after);
  optimizer.step();
  autograd::Backward(net.Loss(3));
  EXPECT_THAT(MessageOf([&] { optimizer.fused_backward(net.Loss(4)); }),
              HasSubstr("already has a gradient"));
  optimizer.zero_grad();
  optimizer.fused_backward(net.Loss(5));
  autograd::Backward(net.Loss(6));
  EXPECT_THAT(MessageOf([&] { optimizer.step(); }), HasSubstr("after the fused backward"));
}

// Absent gradients and frozen parameters are left alone; a failed backward leaves nothing behind.
TYPED_TEST(FusedBackwardTest, AbsentFrozenAndFailure) {
  const ContextPtr context = TestContext();
  Net net(context);
  const ParameterPtr unused = RandomParam("unused", {4}, DType::kF64, context, 5);
  net.params.push_back(unused);
  net.params[0]->set_requires_grad(false);
  TypeParam optimizer(net.params, {.lr = 0.01, .weight_decay = 0.5});
  const std::vector<std::vector<double>> before = net.Weights();
  HookHandle hook = net.params[1]->AddGradHook([](Parameter&) { Throw("a hook fails"); });
  EXPECT_THAT(MessageOf([&] { optimizer.fused_backward(net.Loss(1)); }), HasSubstr("a hook fails"));
  EXPECT_EQ(net.Weights(), before);
  for (const ParameterPtr& p : net.params) EXPECT_FALSE(p->has_grad());
  hook.Remove();
  optimizer.fused_backward(net.Loss(1));
  optimizer.step();
  EXPECT_EQ(optimizer.last_step().num_updated, 3);
  EXPECT_EQ(net.Weights()[0], before[0]);
  EXPECT_EQ(net.Weights()[4], before[4]);
  EXPECT_EQ(optimizer.views()[4].step(), 0);
}

TEST(LomoTest, EquationsAndGroups) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    const ContextPtr context = TestContext({.num_threads = 2});
    const std::vector<LomoOptions> options = {
        {.lr = 0.1, .weight_decay = 0.2, .clip_grad_value = 0.7}, {.lr = 0.02}};
    std::vector<ParamGroup<LomoOptions>> groups = {{{}, options[0]}, {{}, options[1]}};
    std::vector<std::vector<double>> expected, init;
    for (const Shape& shape : AwkwardShapes()) {
      const size_t p = expected.size();
      groups[p % 2].params.push_back(
          RandomParam(internal::Concat("p", p), shape, dtype, context, p));
      init.push_back(Values(groups[p % 2].params.back()->data()));
      expected.push_back(init.back());
    }
    Lomo optimizer(groups);
    optimizer.set_step_options({.max_norm = 100});
    for (int step = 1; step <= 20; ++step) {
      optimizer.zero_grad();
      double squares = 0;
      std::vector<std::vector<double>> grads(expected.size());
      for (size_t p = 0; p < expected.size(); ++p) {
        if ((static_cast<int>(p) + step) % 5 == 0) continue;
        Parameter& param = *groups[p % 2].params[p / 2];
        param.set_grad(
            RandomTensor(param.shape(), dtype, context, 100 * p + static_cast<uint64_t>(step)));
        grads[p] = Values(param.grad());
        squares += Norm(grads[p]) * Norm(grads[p]);
      }
      const double clip = std::min(1.0, 100 / (std::sqrt(squares) + 1e-6));
      for (size_t p = 0; p < expected.size(); ++p) {
        const LomoOptions& o = options[p % 2];
        for (size_t i = 0; i < grads[p].size(); ++i) {
          const double g =
              clip * std::max(-o.clip_grad_value, std::min(grads[p][i], o.clip_grad_value));
          expected[p][i] = expected[p][i] * (1 - o.lr * o.weight_decay) - o.lr * g;
        }
      }
      optimizer.step();
    }
    for (size_t p = 0; p < expected.size(); ++p) {
      EXPECT_LT(UpdateError(Values(groups[p % 2].params[p / 2]->data()), expected[p], init[p]),
                Tolerance(dtype, ErrorKind::kEndToEnd))
          << p;
    }
    EXPECT_EQ(context->ledger().live_bytes(MemoryCategory::kOptimizerState), 0);
  }
}

TEST(LomoTest, StateDictHasTheOptionsExactly) {
  Net net(TestContext());
  Lomo a(net.params, {.lr = 0.1}), b(net.params, {.clip_grad_value = 0.5});
  EXPECT_TRUE(b.load_state_dict(a.state_dict()).ok());
  EXPECT_EQ(b.options(0).clip_grad_value, std::numeric_limits<double>::infinity());
  EXPECT_THAT(MessageOf([&] { Lomo bad(net.params, {.lr = -1, .clip_grad_value = 0}); }),
              AllOf(HasSubstr("lr is -1"), HasSubstr("clip_grad_value is 0, must be above 0")));
}

}  // namespace fused_backward_test
}  // namespace apogee::optim
