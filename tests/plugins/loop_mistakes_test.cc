// SPDX-License-Identifier: Apache-2.0

// Mistakes of a loop that ranks cannot see by themselves: options that differ, another optimizer in
// backward, a loss that is no scalar, and objects that go while others point to them. Every plugin
// says what is wrong, on every rank.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/momentum/lomo.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/message_of.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace loop_mistakes_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MessageOf;
using testing::RunRanks;

std::unique_ptr<Plugin> MakePlugin(const std::string& kind, comm::World& world) {
  if (kind == "ddp") return std::make_unique<DdpPlugin>(world.group());
  if (kind == "zero1" || kind == "zero2") {
    return std::make_unique<LowLevelZeroPlugin>(
        world.group(), TrainingOptions{}, LowLevelZeroOptions{.stage = kind == "zero1" ? 1 : 2});
  }
  if (kind == "gemini") return std::make_unique<GeminiPlugin>(world.group());
  if (kind == "single") return std::make_unique<SingleRankPlugin>();
  const int zero = kind.back() - '0';  // "tp2z1"
  return std::make_unique<HybridParallelPlugin>(world, TrainingOptions{},
                                                HybridParallelOptions{.tp_size = 2, .stage = zero});
}

// An Mlp under a plugin; ranks train on what they like.
struct Rig {
  Rig(const std::string& kind, comm::World& world)
      : context(world.context()), plugin(MakePlugin(kind, world)), booster(*plugin) {
    model = std::make_unique<nn::Mlp>(nn::MlpConfig{.sizes = {4, 6, 4}});
    model->Initialize(context, {.seed = 1});
    optimizer =
        std::make_unique<optim::AdamW>(model->Parameters(), optim::AdamWOptions{.lr = 1e-3});
    std::ignore = booster.boost(*model, *optimizer);
  }
  Tensor Loss() {
    return autograd::Mean((*model)(Tensor::Full({2, 4}, DType::kF32, 0.5, context)));
  }
  void Step() {
    booster.backward(Loss(), *optimizer);
    optimizer->step();
    optimizer->zero_grad();
  }

  ContextPtr context;
  std::unique_ptr<Plugin> plugin;
  Booster booster;
  std::unique_ptr<nn::Mlp> model;
  std::unique_ptr<optim::Optimizer> optimizer;
};

const char* const kOverRanks[] = {"ddp", "zero1", "zero2", "gemini", "tp2z0", "tp2z1", "tp2z3"};

// One rank of a tensor-parallel pair, too.
TEST(LoopMistakesTest, ALearningRateOfOneRankIsFound) {
  for (const std::string kind : kOverRanks) {
    RunRanks(2, [&](comm::World& world) {
      Rig rig(kind, world);
      rig.Step();
      if (world.rank() == 1) rig.optimizer->set_lr(0, 0.5);
      EXPECT_THAT(MessageOf([&] { rig.Step(); }),
                  HasSubstr("step: ranks disagree on the options of group 0 of optimizer adamw: lr "
                            "is 0.001 on rank 0, 0.5 on rank 1"))
          << kind;
    });
  }
}

TEST(LoopMistakesTest, ARateSetBetweenBackwardAndStepIsFound) {
  for (const std::string kind : kOverRanks) {
    RunRanks(2, [&](comm::World& world) {
      Rig rig(kind, world);
      rig.Step();
      const std::string message = MessageOf([&] {
        for (int step = 0; step < 2; ++step) {  // ddp hears of it in the next backward
          rig.booster.backward(rig.Loss(), *rig.optimizer);
          if (world.rank() == 1) rig.optimizer->set_lr(0, 0.5);
          rig.optimizer->step();
          rig.optimizer->zero_grad();
          if (world.rank() == 1) rig.optimizer->set_lr(0, 1e-3);
        }
      });
      EXPECT_THAT(message, HasSubstr("step: ranks disagree on the options of")) << kind;
    });
  }
}

TEST(LoopMistakesTest, StepOptionsOfOneRankAreFound) {
  for (const std::string kind : kOverRanks) {
    RunRanks(2, [&](comm::World& world) {
      Rig rig(kind, world);
      rig.Step();
      if (world.rank() == 1) rig.optimizer->set_step_options({.max_norm = 1e-3});
      EXPECT_THAT(
          MessageOf([&] { rig.Step(); }),
          HasSubstr("its step options of optimizer adamw: max_norm is 0 on rank 0, 0.001 on "
                    "rank 1"))
          << kind;
    });
  }
}

TEST(LoopMistakesTest, BackwardTakesTheBoostedOptimizerAndAScalar) {
  for (const std::string kind : {"single", "ddp", "zero1", "zero2", "gemini", "tp2z0"}) {
    RunRanks(kind == "single" ? 1 : 2, [&](comm::World& world) {
      Rig rig(kind, world);
      const auto own = std::make_shared<autograd::Parameter>(
          "own", Tensor::Zeros({2}, DType::kF32, world.context()));
      optim::Sgd other({own}, {.lr = 0.1});
      EXPECT_THAT(MessageOf([&] { rig.booster.backward(rig.Loss(), other); }),
                  AllOf(HasSubstr("backward: optimizer sgd is not the adamw"),
                        HasSubstr("booster.backward(loss, boosted.optimizer)")))
          << kind;
      const std::string not_scalar =
          "must be a scalar, got shape [2, 4]; reduce it first, for instance with autograd::Mean";
      const Tensor inputs = Tensor::Full({2, 4}, DType::kF32, 0.5, world.context());
      EXPECT_THAT(MessageOf([&] { rig.booster.backward((*rig.model)(inputs), *rig.optimizer); }),
                  HasSubstr("backward: the loss " + not_scalar))
          << kind;
      const data::Batch batch{inputs, inputs};
      EXPECT_THAT(MessageOf([&] {
                    rig.booster.execute_pipeline(
                        batch, *rig.model, [](const Tensor& y, const Tensor&) { return y; },
                        rig.optimizer.get());
                  }),
                  HasSubstr("execute_pipeline: the criterion's loss " + not_scalar))
          << kind;
    });
  }
}

TEST(LoopMistakesTest, AnOptimizerThatIsGoneIsNamed) {
  for (const std::string kind : {"single", "ddp", "zero1", "zero2", "gemini", "tp2z0", "tp2z1"}) {
    RunRanks(kind == "single" ? 1 : 2, [&](comm::World& world) {
      Rig rig(kind, world);
      rig.Step();
      const Tensor loss = rig.Loss();
      rig.optimizer.reset();
      optim::Sgd other({std::make_shared<autograd::Parameter>(
                           "own", Tensor::Zeros({2}, DType::kF32, world.context()))},
                       {.lr = 0.1});
      const auto gone = [&](const char* call) {
        return HasSubstr(std::string(call) +
                         ": the optimizer that boost returned has been destroyed; keep it");
      };
      EXPECT_THAT(MessageOf([&] { rig.booster.backward(loss, other); }), gone("backward"));
      EXPECT_THAT(MessageOf([&] { (void)rig.booster.save_model("/nowhere"); }), gone("save_model"));
      EXPECT_THAT(
          MessageOf([&] { (void)rig.booster.save_training_state("/nowhere", {.step = 1}); }),
          gone("save_training_state"));
      EXPECT_THAT(MessageOf([&] { (void)rig.booster.save_optimizer("/nowhere"); }),
                  gone("save_optimizer"));
      EXPECT_THAT(MessageOf([&] { (void)rig.booster.load_model("/nowhere"); }), gone("load_model"));
      EXPECT_THAT(MessageOf([&] { (void)rig.booster.resume("/nowhere"); }), gone("resume"));
      for (const auto& parameter : rig.model->Parameters()) parameter->zero_grad();
      if (kind != "single") {
        EXPECT_THAT(MessageOf([&] { rig.plugin->Backward(loss, other); }),
                    HasSubstr("backward after the optimizer that boost returned was destroyed"))
            << kind;
      }
    });
  }
}

TEST(LoopMistakesTest, AModelThatGoesBeforeBackwardIsNamed) {
  for (const std::string kind : {"single", "ddp", "zero2", "gemini", "tp2z0", "tp2z1"}) {
    for (const bool optimizer_too : {false, true}) {
      RunRanks(kind == "single" ? 1 : 2, [&](comm::World& world) {
        Rig rig(kind, world);
        rig.Step();
        const Tensor loss = rig.Loss();
        optim::Sgd other({std::make_shared<autograd::Parameter>(
                             "own", Tensor::Zeros({2}, DType::kF32, world.context()))},
                         {.lr = 0.1});
        if (optimizer_too) rig.optimizer.reset();
        rig.model.reset();
        EXPECT_THAT(
            MessageOf([&] { rig.booster.backward(loss, optimizer_too ? other : *rig.optimizer); }),
            HasSubstr("backward: the model that was given to boost has been destroyed"))
            << kind;
      });
    }
  }
}

TEST(LoopMistakesTest, APluginThatIsGoneIsNamed) {
  RunRanks(1, [&](comm::World& world) {
    Rig rig("single", world);
    const Tensor loss = rig.Loss();
    rig.plugin.reset();
    EXPECT_THAT(MessageOf([&] { rig.booster.backward(loss, *rig.optimizer); }),
                HasSubstr("the plugin of this booster has been destroyed"));
  });
}

// One rank runs a block and drops what it puts out: the others gather its parameters again.
TEST(LoopMistakesTest, AModuleThatOneRankLeavesOutOfItsLossIsNamed) {
  class TwoBlocks : public nn::Module {
   public:
    TwoBlocks()
        : a(Register("a", std::make_shared<nn::Mlp>(nn::MlpConfig{.sizes = {4, 4}}))),
          b(Register("b", std::make_shared<nn::Mlp>(nn::MlpConfig{.sizes = {4, 6, 4}}))) {}
    Tensor Forward(const Tensor& x) override {
      const Tensor y = (*a)(x), z = (*b)(y);
      return drops_b ? y : autograd::Add(y, z);
    }
    bool drops_b = false;
    std::shared_ptr<nn::Mlp> a, b;
  };
  const absl::Status status = testing::LaunchRanks(
      {.num_ranks = 2, .threads_per_rank = 1, .timeout_seconds = 20}, [&](comm::World& world) {
        TwoBlocks model;
        model.Initialize(world.context(), {.seed = 1});
        optim::Sgd optimizer(model.Parameters(), {.lr = 0.1});
        GeminiPlugin plugin(world.group());
        Booster booster(plugin);
        std::ignore = booster.boost(model, optimizer);
        model.drops_b = world.rank() == 1;
        const Tensor x = Tensor::Full({2, 4}, DType::kF32, 0.5, world.context());
        booster.backward(autograd::Mean(model(x)), optimizer);
      });
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("gemini: gathering the parameters of module \""),
                    HasSubstr("for its backward"), HasSubstr("add 0 times that output to its")));
}

TEST(LoopMistakesTest, ASaveOfOneRankNamesTheCalls) {
  RunRanks(2, [&](comm::World& world) {
    Rig rig("ddp", world);
    rig.Step();
    const bool saves = world.rank() == 0;
    EXPECT_THAT(MessageOf([&] {
                  if (saves) (void)rig.booster.save_model("/nowhere/at/all");
                  rig.Step();
                }),
                AllOf(HasSubstr(saves ? "save_model: ranks disagree" : "backward: ranks disagree"),
                      HasSubstr("a save or an evaluation on rank 0 alone is the usual mistake")));
  });
}

}  // namespace loop_mistakes_test
}  // namespace apogee
