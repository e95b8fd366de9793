// SPDX-License-Identifier: Apache-2.0

// The fused backward that a GPU decides: the bits and the report of the one that the host decides,
// and no wait.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <future>
#include <limits>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/optim/registry.h"
#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tensor/cuda/cuda_graph.h"
#include "apogee/tests/optim/decision/held_gpu.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/support/message_of.h"

namespace apogee::optim {
namespace fused_decision_test {

using ::apogee::testing::MessageOf;
using ::testing::HasSubstr;

constexpr const char* kFused[] = {"lomo", "adalomo"};

class FusedDecisionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (NumCudaDevices() == 0) GTEST_SKIP() << "no GPU: " << CudaContext().status();
    context_ = ValueOrThrow(CudaContext());
  }
  ContextPtr context_;
};

// Two layers, whose optimizer updates inside backward.
struct Net {
  Net(const ContextPtr& context, DType dtype, const char* name)
      : params{RandomParam("first", {12, 10}, dtype, context, 1),
               RandomParam("bias", {12}, dtype, context, 2),
               RandomParam("second", {7, 12}, dtype, context, 3)},
        optimizer(ValueOrThrow(MakeOptimizer(
            name, params, {{"lr", "0.1"}, {"weight_decay", "0.1"}, {"clip_grad_value", "0.02"}}))),
        hook(params[0]->AddGradHook([this](Parameter& parameter) {
          if (infinite) parameter.grad().Fill(std::numeric_limits<double>::infinity());
        })) {}
  Tensor Loss(uint64_t seed) const {
    const Tensor& weight = params[0]->data();
    const Tensor x = RandomTensor({5, 10}, weight.dtype(), weight.context(), seed);
    const Tensor y = autograd::Linear(autograd::Linear(x, params[0]->value(), params[1]->value()),
                                      params[2]->value(), Tensor());
    return autograd::Mean(autograd::Mul(y, y));
  }

  std::vector<ParameterPtr> params;
  std::unique_ptr<Optimizer> optimizer;
  bool infinite = false;
  HookHandle hook;
};

// An overflow of the last gradient leaves every state as it was, though backward has updated.
TEST_F(FusedDecisionTest, HasTheBitsAndReportsOfTheHost) {
  for (const char* name : kFused) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(name);
      Net device(context_, dtype, name), host(context_, dtype, name);
      for (Net* net : {&device, &host}) {
        net->optimizer->set_step_options(
            {.max_norm = 0.5,
             .nonfinite = net == &host ? NonFinitePolicy::kThrow : NonFinitePolicy::kSkip,
             .loss_scale = 4});
      }
      for (uint64_t step = 0; step < 7; ++step) {
        for (Net* net : {&device, &host}) {
          net->infinite = step % 3 == 0;
          net->optimizer->fused_backward(net->Loss(step));
        }
        device.optimizer->step();
        StepOnHost(*host.optimizer);
        EXPECT_EQ(device.optimizer->group_state(0), host.optimizer->group_state(0));
        const StepReport &got = device.optimizer->last_step(),
                         &expected = host.optimizer->last_step();
        EXPECT_EQ(got.skip, step % 3 == 0);
        EXPECT_EQ(got.nonfinite_parameter, step % 3 == 0 ? "first" : "");
        EXPECT_EQ(got.num_updated, step % 3 == 0 ? 0 : 3);
        EXPECT_EQ(got.clip_factor, expected.clip_factor);
        if (step % 3 != 0) {
          EXPECT_EQ(got.grad_norm, expected.grad_norm);
        }
        EXPECT_EQ(device.optimizer->num_skipped_steps(), host.optimizer->num_skipped_steps());
        for (size_t i = 0; i < device.params.size(); ++i) {
          const ParamView &a = device.optimizer->views()[i], &b = host.optimizer->views()[i];
          EXPECT_EQ(a.step(), b.step());
          EXPECT_EQ(Values(device.params[i]->data()), Values(host.params[i]->data())) << a.name();
          for (const NamedState& state : b.states()) {
            EXPECT_EQ(Values(a.state(state.name)), Values(state.value)) << a.name() << state.name;
          }
        }
      }
    }
  }
}

TEST_F(FusedDecisionTest, WaitsForNothing) {
  for (const char* name : kFused) {
    for (const double max_norm : {0.0, 0.5}) {
      SCOPED_TRACE(name);
      Net net(context_, DType::kF32, name);
      net.optimizer->set_step_options({.max_norm = max_norm});
      net.optimizer->fused_backward(net.Loss(1));
      net.optimizer->step();
      EXPECT_FALSE(net.optimizer->last_step().skip);
      const Tensor loss = net.Loss(2);
      context_->Synchronize();
      Blocker blocker(*context_);
      auto step = std::async(std::launch::async, [&] {
        net.optimizer->fused_backward(loss);
        net.optimizer->step();
      });
      const std::future_status status = step.wait_for(std::chrono::seconds(30));
      blocker.GoOn();
      step.get();
      ASSERT_EQ(status, std::future_status::ready);
      EXPECT_EQ(net.optimizer->last_step().num_updated, 3);
    }
  }
}

// A graph that is replayed would update with the numbers of its capture.
TEST_F(FusedDecisionTest, IsNoPartOfAGraphThatIsReplayed) {
  for (const char* name : kFused) {
    Net net(context_, DType::kF32, name);
    net.optimizer->fused_backward(net.Loss(1));
    net.optimizer->step();
    const Tensor loss = net.Loss(2);
    const std::vector<double> before = Values(net.params[2]->data());
    EXPECT_THAT(MessageOf([&] {
                  CudaGraph::Capture(context_, {},
                                     [&](const auto&) { net.optimizer->fused_backward(loss); });
                }),
                HasSubstr("within the capture of a CudaGraph, whose replays would use"));
    EXPECT_EQ(Values(net.params[2]->data()), before);
    EXPECT_EQ(net.optimizer->views()[0].step(), 1);
  }
}

// Backward fails between its updates, in a step that the GPU skips.
TEST_F(FusedDecisionTest, FailingBackwardCountsNoSkippedUpdate) {
  Net net(context_, DType::kF32, "lomo");
  net.infinite = true;
  int calls = 0;
  const HookHandle fails = net.params[1]->AddGradHook([&](Parameter&) {
    if (++calls == 2) Throw("the second walk fails");
  });
  EXPECT_THAT(MessageOf([&] { net.optimizer->fused_backward(net.Loss(1)); }),
              HasSubstr("the second walk fails"));
  for (const ParamView& view : net.optimizer->views()) EXPECT_EQ(view.step(), 0) << view.name();
}

}  // namespace fused_decision_test
}  // namespace apogee::optim
