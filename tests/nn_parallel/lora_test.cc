// SPDX-License-Identifier: Apache-2.0

// Adapters of column and row layers: with dropout and DoRA, as on one rank.
#include "apogee/nn/lora/lora.h"

#include <gmock/gmock-matchers.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn::parallel {
namespace lora_test {

using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::RunRanks;
using testing::Says;
using Values = std::vector<double>;

constexpr int64_t kWidth = 6, kHidden = 12;

class Net : public Module {
 public:
  explicit Net(const ContextPtr& context) {
    up_ = Register("up", std::make_shared<Linear>(kWidth, kHidden,
                                                  LinearOptions{.activation = Activation::kTanh}));
    down_ = Register("down", std::make_shared<Linear>(
                                 kHidden, kWidth, LinearOptions{.layout = WeightLayout::kInOut}));
    Initialize(context, {.seed = 3, .dtype = DType::kF64});
  }
  Tensor Forward(const Tensor& x) override { return (*down_)((*up_)(x)); }

 private:
  std::shared_ptr<Linear> up_, down_;
};

ParallelPlan PlanOf() {
  return {.name = "net",
          .rules = {{.pattern = "up", .style = ParallelStyle::kColumn},
                    {.pattern = "down", .style = ParallelStyle::kRow}}};
}

void AddTo(Net& net, const LoraOptions& options, const ContextPtr& context) {
  AddLora(net, options);
  for (const ParameterPtr& parameter : net.Parameters()) {
    if (parameter->name().find(".lora_") == std::string::npos) continue;
    parameter->data().CopyFrom(RandomTensor(parameter->shape(), parameter->name(), context));
  }
}

// The output, and the gradients of x and of all factors.
std::vector<Values> Results(Net& net, const ContextPtr& context, const TensorParallel* cut) {
  Parameter x("x", RandomTensor({4, 3, kWidth}, "x", context));
  const Tensor y = net(x.value());
  autograd::Backward(autograd::Sum(autograd::Square(y)));
  std::vector<Values> results = {y.Detach().ToVector<double>(), x.grad().ToVector<double>()};
  for (const ParameterPtr& parameter : net.Parameters()) {
    if (!parameter->requires_grad()) continue;
    const Tensor grad = parameter->grad();
    const Tensor whole = cut == nullptr ? grad : cut->Whole(*parameter, grad);
    results.push_back(whole.ToVector<double>());
  }
  return results;
}

TEST(LoraParallelTest, AsOnOneRank) {
  for (const double dropout : {0.0, 0.5}) {
    for (const bool dora : {false, true}) {
      const LoraOptions options{
          .rank = 2, .alpha = 3, .targets = {"up", "down"}, .dropout = dropout, .use_dora = dora};
      for (const int tp : {2, 3}) {
        RunRanks(tp, [&](comm::World& world) {
          Net one(world.context()), net(world.context());
          AddTo(one, options, world.context());
          AddTo(net, options, world.context());
          const std::vector<Values> want = Results(one, world.context(), nullptr);
          TensorParallel parallel(net, PlanOf(), world.group());
          parallel.Apply();
          const std::vector<Values> got = Results(net, world.context(), &parallel);
          ASSERT_EQ(got.size(), want.size());
          for (size_t i = 0; i < want.size(); ++i) ExpectClose(got[i], want[i], 1e-12);
        });
      }
    }
  }
}

TEST(LoraParallelTest, WhatCannotBeCut) {
  RunRanks(2, [](comm::World& world) {
    Net net(world.context());
    AddLora(net, {.rank = 2, .targets = {"down"}, .dropout = 0.1});
    ParallelPlan plan = PlanOf();
    for (PlanRule& rule : plan.rules) rule.sections = 3;
    EXPECT_THAT([&] { TensorParallel(net, plan, world.group()); },
                Says(HasSubstr("down has several sections, over which the dropout of adapter "
                               "\"default\" cannot be cut; set its dropout to 0")));
  });
}

}  // namespace lora_test
}  // namespace apogee::nn::parallel
