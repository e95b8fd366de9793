// SPDX-License-Identifier: Apache-2.0

// What GeminiPlugin refuses, and what it says about values that are elsewhere.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/grad_clip.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/optim/registry.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/gemini_run.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace gemini_errors_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;
using ::testing::Throws;
using testing::Weights;
using testing::WholeWeightsOf;

struct Rig {
  explicit Rig(comm::World& world)
      : context(world.context()),
        model({.sizes = {8, 24, 4}}),
        plugin(world.group()),
        booster(plugin) {
    model.Initialize(context, {.seed = 3});
    optimizer.emplace(model.Parameters(), optim::AdamWOptions{.lr = 1e-2});
  }
  void Boost() { std::ignore = booster.boost(model, *optimizer); }
  Tensor Loss() {
    const Tensor output = model(Tensor::Full({2, 8}, DType::kF32, 0.5, context));
    return nn::CrossEntropyLoss()(output, Tensor::FromVector<int64_t>({1, 2}, {2}, context));
  }

  ContextPtr context;
  nn::Mlp model;
  std::optional<optim::AdamW> optimizer;
  GeminiPlugin plugin;
  Booster booster;
};

TEST(GeminiErrorsTest, BadOptionsAreAllListed) {
  EXPECT_THAT(
      [] {
        GeminiPlugin(nullptr, {.max_norm = -1, .bucket_bytes = 0, .overlap = false},
                     {.placement = {.offload_optim_frac = 2}});
      },
      Says(AllOf(HasSubstr("offload_optim_frac must be between 0 and 1, got 2"),
                 HasSubstr("max_norm"), HasSubstr("bucket_bytes must be positive, got 0"),
                 HasSubstr("overlap must be true"))));
}

TEST(GeminiErrorsTest, ReadsOutsideOfModulesNameTheParameter) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world);
    rig.Boost();
    const autograd::ParameterPtr weight = rig.model.FindParameter("layers.1.weight");
    for (int round = 0; round < 2; ++round) {
      EXPECT_THAT([&] { weight->value(); },
                  Says(AllOf(HasSubstr("\"layers.1.weight\""),
                             HasSubstr("Read it in a module's forward"))));
      EXPECT_EQ(weight->data().numel(), rig.plugin.LayoutOf(*weight).local_numel());
      rig.Loss();
    }
    EXPECT_THAT([&] { autograd::Backward(rig.Loss()); },
                Says(HasSubstr("booster.backward(loss, optimizer) instead of")));
    // Nothing of that is left behind.
    const Weights start = WholeWeightsOf(rig.model, rig.plugin);
    rig.booster.backward(rig.Loss(), *rig.optimizer);
    rig.optimizer->step();
    EXPECT_NE(WholeWeightsOf(rig.model, rig.plugin), start);
    EXPECT_THAT([&] { optim::ClipGradNorm(rig.model.Parameters(), {.max_norm = 1}); },
                Says(HasSubstr("layers.0.weight")));
  });
}

// After the freeze they would be given means, silently.
TEST(GeminiErrorsTest, OptimizersThatWantLocalGradients) {
  RunRanks(2, [](comm::World& world) {
    for (const std::string& name : optim::OptimizerNames()) {
      if (!optim::TakesLocalGradients(name)) continue;
      nn::Mlp model({.sizes = {8, 24, 4}});
      model.Initialize(world.context(), {.seed = 1});
      const auto optimizer = ValueOrThrow(optim::MakeOptimizer(name, model.Parameters(), {}));
      GeminiPlugin plugin(world.group());
      Booster booster(plugin);
      EXPECT_THAT([&] { std::ignore = booster.boost(model, *optimizer); },
                  Says(AllOf(HasSubstr("gemini: optimizer " + optimizer->name()),
                             HasSubstr("1-bit messages"))));
    }
  });
}

TEST(GeminiErrorsTest, ValuesAndGradientsFromElsewhere) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world);
    rig.Boost();
    const autograd::ParameterPtr bias = rig.model.FindParameter("layers.0.bias");
    rig.booster.backward(rig.Loss(), *rig.optimizer);
    bias->set_grad(Tensor::Zeros({24}, DType::kF32, rig.context));
    EXPECT_THAT([&] { rig.optimizer->step(); },
                Says(AllOf(HasSubstr("layers.0.bias"), HasSubstr("outside of backward"))));
    bias->set_grad({});
    EXPECT_THAT([&] { bias->set_value(Tensor::Zeros({24}, DType::kF32, rig.context)); },
                Says(AllOf(HasSubstr("layers.0.bias"), HasSubstr("another tensor after boost"))));
  });
}

TEST(GeminiErrorsTest, ThawedAndBoostedTwice) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world);
    const autograd::ParameterPtr bias = rig.model.FindParameter("layers.0.bias");
    bias->set_requires_grad(false);
    rig.Boost();
    EXPECT_THAT([&] { rig.Boost(); }, Throws<Error>());
    GeminiPlugin another(world.group());
    Booster second(another);
    EXPECT_THAT([&] { std::ignore = second.boost(rig.model, *rig.optimizer); },
                Says(HasSubstr("a model can be boosted once")));
    EXPECT_THAT([&] { optim::Sgd(rig.model.Parameters(), {.lr = 0.1}); },
                Says(HasSubstr("make the optimizer before boost")));
    bias->set_requires_grad(true);
    EXPECT_THAT([&] { rig.booster.backward(rig.Loss(), *rig.optimizer); },
                Says(AllOf(HasSubstr("layers.0.bias"), HasSubstr("unfrozen"))));
  });
}

// A user's optimizer that does not say what it needs of whole tensors.
struct WholeTensorsRule : optim::SgdRule {
  using SgdRule::SgdRule;
  optim::OptimizerTraits traits() override { return {}; }
};
using WholeTensorsOnly = optim::OptimizerOf<WholeTensorsRule>;

TEST(GeminiErrorsTest, WhatCannotBeExactIsRefusedBeforeAnythingChanges) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world);
    WholeTensorsOnly optimizer(rig.model.Parameters(), {.lr = 0.1});
    EXPECT_THAT([&] { rig.booster.boost(rig.model, optimizer); },
                Says(HasSubstr("OptimizerTraits::shards")));
    EXPECT_TRUE(rig.model.Parameters()[0]->is_local());
    // Somebody else's wrapper, which windows could not be put around.
    nn::Mlp wrapped({.sizes = {8, 4}});
    wrapped.Initialize(rig.context, {.seed = 3});
    wrapped.Modules().back()->WrapForward(
        [](const Tensor& x, const nn::Module::ForwardFunction& forward) { return forward(x); });
    optim::Sgd sgd(wrapped.Parameters(), {.lr = 0.1});
    GeminiPlugin plugin(world.group());
    Booster booster(plugin);
    EXPECT_THAT([&] { std::ignore = booster.boost(wrapped, sgd); },
                Says(HasSubstr("has been wrapped")));
    EXPECT_TRUE(wrapped.Parameters()[0]->is_local());
    rig.Boost();  // the booster is still free
    EXPECT_FALSE(rig.model.Parameters()[0]->is_local());
  });
}

TEST(GeminiErrorsTest, TheModelOutlivesThePlugin) {
  RunRanks(2, [](comm::World& world) {
    nn::Mlp model({.sizes = {8, 4}});
    model.Initialize(world.context(), {.seed = 3});
    optim::Sgd optimizer(model.Parameters(), {.lr = 0.1});
    {
      GeminiPlugin plugin(world.group());
      Booster booster(plugin);
      std::ignore = booster.boost(model, optimizer);
    }
    EXPECT_THAT(
        [&] {
          model(Tensor::Zeros({2, 8}, DType::kF32, world.context()));
        },
        Says(HasSubstr("after the plugin that shards its parameters was destroyed")));
    EXPECT_THAT([&] { model.Parameters()[0]->value(); },
                Says(AllOf(HasSubstr("layers.0.weight"), HasSubstr("destroyed"))));
  });
}

// A forward that throws half-way holds nothing.
TEST(GeminiErrorsTest, AFailedForwardReleases) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world);
    rig.Boost();
    const MemoryLedger& ledger = world.context()->ledger();
    const int64_t rest = ledger.live_bytes(MemoryCategory::kParameter);
    EXPECT_THROW(rig.model(Tensor::Zeros({2, 7}, DType::kF32, rig.context)), Error);
    EXPECT_EQ(ledger.live_bytes(MemoryCategory::kParameter), rest);
    rig.booster.backward(rig.Loss(), *rig.optimizer);
    rig.optimizer->step();
    EXPECT_EQ(ledger.live_bytes(MemoryCategory::kParameter), rest);
  });
}

}  // namespace gemini_errors_test
}  // namespace apogee
