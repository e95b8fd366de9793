// SPDX-License-Identifier: Apache-2.0

// A backend that no file of the others knows: its devices have names, contexts, kernels, steps and
// collectives, and a kernel that it lacks is an error that names both.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/comm/launch.h"
#include "apogee/comm/sign_kernels.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/optim/step/device_decision.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/make_context.h"
#include "apogee/tests/support/message_of.h"

namespace apogee {
namespace third_backend_test {

using ::apogee::testing::MessageOf;
using ::testing::HasSubstr;

ContextPtr Third() { return ValueOrThrow(MakeContext(ValueOrThrow(ParseDevice("third")).For(0))); }

TEST(ThirdBackendTest, HasNames) {
  EXPECT_EQ(ValueOrThrow(ParseDevice("third")).For(3).ToString(), "third:1");
  EXPECT_EQ(ValueOrThrow(ParseDevice("third:0")).For(3).ToString(), "third:0");
  EXPECT_THAT(Message(ParseDevice("fourth").status()),
              HasSubstr("expected one of cpu, cuda, cuda:NUMBER, third, third:NUMBER"));
}

TEST(ThirdBackendTest, HasContexts) {
  const ContextPtr context = Third();
  EXPECT_FALSE(context->is_host());
  EXPECT_EQ(HostMemoryFor(context)->device(), context->device());
  EXPECT_THAT(Message(MakeContext({DeviceType::kThird, 2}).status()), HasSubstr("devices 0 and 1"));
}

TEST(ThirdBackendTest, RunsItsKernels) {
  const Tensor ones = Tensor::Full({5}, DType::kF32, 1, Third());
  EXPECT_EQ(ones.ToVector<float>(), std::vector<float>(5, 1));
  EXPECT_EQ(ones.To(CpuContext()).ToVector<float>(), std::vector<float>(5, 1));
}

TEST(ThirdBackendTest, AMissingKernelIsNamed) {
  const ContextPtr context = Third();
  const auto error = [&](auto call) { return MessageOf(call); };
  EXPECT_THAT(error([&] { context->kernels().sum(*context, {}); }),
              HasSubstr("sum: no kernel for third:0"));
  EXPECT_THAT(error([&] { optim::OptimKernelsFor(*context).adam(*context, {}); }),
              HasSubstr("adam: no kernel for third:0"));
  EXPECT_THAT(error([&] { comm::SignKernelsFor(*context).pack(*context, {}); }),
              HasSubstr("pack: no kernel for third:0"));
  EXPECT_FALSE(optim::HasDeviceDecision(*context));
  EXPECT_THAT(error([&] { optim::MakeDeviceDecision(context); }),
              HasSubstr("steps on third:0 are decided by the host"));
}

TEST(ThirdBackendTest, StepsAnOptimizer) {
  const ContextPtr context = Third();
  const auto w =
      std::make_shared<autograd::Parameter>("w", Tensor::Full({3}, DType::kF32, 1, context));
  optim::Sgd optimizer({w}, {.lr = 0.5});
  w->set_grad(Tensor::Full({3}, DType::kF32, 2, context));
  optimizer.step();
  EXPECT_EQ(w->data().ToVector<float>(), std::vector<float>(3, 0));
}

TEST(ThirdBackendTest, Reduces) {
  OkOrThrow(comm::launch({.num_ranks = 3, .device = "third:1"}, [](comm::World& world) {
    EXPECT_EQ(world.context()->device().ToString(), "third:1");
    const Tensor x =
        Tensor::Full({4}, DType::kF32, static_cast<double>(world.rank()), world.context());
    world.group()->AllReduce(x);
    EXPECT_EQ(x.ToVector<float>(), std::vector<float>(4, 3));
  }));
}

}  // namespace third_backend_test
}  // namespace apogee
