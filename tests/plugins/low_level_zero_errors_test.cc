// SPDX-License-Identifier: Apache-2.0

// What LowLevelZeroPlugin refuses, and what a loop finds unchanged after it did; precision options.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/grad_clip.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/tiny_run.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace low_level_zero_errors_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kTinyBatch;
using testing::RunRanks;
using testing::Says;
using testing::TinyLoss;
using testing::TinyModel;
using testing::TinyRunOptions;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

// An Mlp under ZeRO on every rank of a world.
struct Rig {
  explicit Rig(comm::World& world, const TrainingOptions& training = {},
               const LowLevelZeroOptions& options = {}, DType dtype = DType::kF32)
      : context(world.context()),
        plugin(world.group(), training, options),
        booster(plugin),
        dtype(dtype) {
    model.Initialize(world.context(), {.seed = 1});
    optimizer = std::make_unique<optim::Sgd>(model.Parameters(),
                                             optim::SgdOptions{.lr = 0.5, .momentum = 0.9});
  }
  Tensor Loss(double input = 0.5) {
    return autograd::Sum(model(Tensor::Full({2, 4}, dtype, input, context)));
  }

  ContextPtr context;
  nn::Mlp model{{.sizes = {4, 5, 3}}};
  std::unique_ptr<optim::Sgd> optimizer;
  LowLevelZeroPlugin plugin;
  Booster booster;
  DType dtype;
};

TEST(LowLevelZeroErrorsTest, BadOptionsAreListedTogether) {
  EXPECT_THAT(
      [] { LowLevelZeroPlugin(nullptr, {.max_norm = -1, .bucket_bytes = 0}, {.stage = 3}); },
      Says(AllOf(HasSubstr("stage must be 1 (states sharded) or 2 (gradients too), got 3"),
                 HasSubstr("max_norm"), HasSubstr("bucket_bytes"))));
}

// A user's optimizer that does not say what it needs of whole tensors.
struct WholeTensorsRule : optim::SgdRule {
  using SgdRule::SgdRule;
  optim::OptimizerTraits traits() override { return {}; }
};
using WholeTensorsOnly = optim::OptimizerOf<WholeTensorsRule>;

TEST(LowLevelZeroErrorsTest, WhatCannotBeExactIsRefusedBeforeAnythingChanges) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world);
    WholeTensorsOnly optimizer(rig.model.Parameters(), {.lr = 0.1});
    const auto storage = rig.model.Parameters()[0]->data().storage();
    EXPECT_THAT([&] { rig.booster.boost(rig.model, optimizer); },
                Says(AllOf(HasSubstr("low_level_zero"), HasSubstr("optimizer sgd"),
                           HasSubstr("OptimizerTraits::shards"))));
    EXPECT_EQ(rig.model.Parameters()[0]->data().storage(), storage);
    rig.booster.boost(rig.model, *rig.optimizer);  // the booster is still free
    LowLevelZeroPlugin another(world.group());
    Booster second(another);
    EXPECT_THAT([&] { std::ignore = second.boost(rig.model, *rig.optimizer); },
                Says(HasSubstr("an optimizer can be boosted once")));
  });
}

TEST(LowLevelZeroErrorsTest, StepsThatMakeNoSenseChangeNothing) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world);
    rig.booster.boost(rig.model, *rig.optimizer);
    const Weights start = WeightsOf(rig.model);
    EXPECT_THAT([&] { rig.optimizer->step(); }, Says(HasSubstr("step() without a backward")));
    {
      const auto hold = rig.booster.no_sync();
      rig.booster.backward(rig.Loss(), *rig.optimizer);
    }
    EXPECT_THAT([&] { rig.optimizer->step(); }, Says(HasSubstr("under no_sync")));
    EXPECT_EQ(WeightsOf(rig.model), start);
    rig.booster.backward(rig.Loss(), *rig.optimizer);
    rig.optimizer->step();
    EXPECT_NE(WeightsOf(rig.model), start);
    EXPECT_THAT([&] { autograd::Backward(rig.Loss()); },
                Says(HasSubstr("outside of booster.backward()")));
  });
}

// Functions that look for gradients in parameters would find none and clip nothing.
TEST(LowLevelZeroErrorsTest, ClippingByHandIsRefused) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world);
    rig.booster.boost(rig.model, *rig.optimizer);
    rig.booster.backward(rig.Loss(), *rig.optimizer);
    EXPECT_THAT([&] { optim::ClipGradNorm(rig.model.Parameters(), {.max_norm = 1}); },
                Says(AllOf(HasSubstr("layers.0.weight"), HasSubstr("set the plugin's max_norm"))));
  });
}

TEST(LowLevelZeroErrorsTest, BadLossScale) {
  EXPECT_THROW(LowLevelZeroPlugin(
                   nullptr, {.precision = Precision::kFp16, .loss_scaler = {.initial_scale = 0}}),
               Error);
}

TEST(LowLevelZeroErrorsTest, ParametersChangedAfterBoost) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world);
    rig.model.Parameters()[0]->set_requires_grad(false);
    rig.booster.boost(rig.model, *rig.optimizer);
    const auto parameter = rig.model.Parameters()[1];
    rig.booster.backward(rig.Loss(), *rig.optimizer);
    const Weights before = WeightsOf(rig.model);
    EXPECT_THAT([&] { parameter->set_value(parameter->data().Clone()); },
                Says(AllOf(HasSubstr(parameter->name()), HasSubstr("another tensor after boost"))));
    EXPECT_EQ(WeightsOf(rig.model), before);
    rig.model.Parameters()[0]->set_requires_grad(true);
    EXPECT_THAT([&] { rig.booster.backward(rig.Loss(), *rig.optimizer); },
                Says(AllOf(HasSubstr("layers.0.weight"), HasSubstr("frozen at boost"))));
  });
}

TEST(LowLevelZeroErrorsTest, ARankThatFailsInBackwardIsNamedEverywhere) {
  std::vector<std::string> messages(3);
  std::vector<int> unchanged(3, 0);
  const absl::Status status =
      testing::LaunchRanks({.num_ranks = 3, .threads_per_rank = 1}, [&](comm::World& world) {
        Rig rig(world);
        const Weights start = WeightsOf(rig.model);
        const auto rank = static_cast<size_t>(world.rank());
        if (rank == 1) {
          rig.model.Parameters()[2]->AddGradHook(
              [](autograd::Parameter&) { Throw("disk on fire"); });
        }
        try {
          // A slow rank may still be in boost when rank 1 fails.
          rig.booster.boost(rig.model, *rig.optimizer);
          rig.booster.backward(rig.Loss(), *rig.optimizer);
        } catch (const Error& error) {
          messages[rank] = error.what();
          unchanged[rank] = WeightsOf(rig.model) == start;
          throw;
        }
      });
  testing::ShareByRank(messages);
  testing::ShareByRank(unchanged);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(messages[1], HasSubstr("disk on fire"));
  for (const size_t rank : {0, 2}) {
    EXPECT_THAT(messages[rank], AllOf(HasSubstr("rank 1"), HasSubstr("disk on fire")));
  }
  EXPECT_EQ(unchanged, std::vector<int>(3, 1));
}

// More state than any machine has.
struct HoarderRule : optim::SgdRule {
  using SgdRule::SgdRule;

 protected:
  void States(const Subject&, std::vector<optim::StateSpec>& specs) const override {
    specs = {{"hoard", StateKind::kHistory, {int64_t{1} << 50}}};
  }
};
using Hoarder = optim::OptimizerOf<HoarderRule>;

TEST(LowLevelZeroErrorsTest, NoRoomToOffload) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world, {}, {.offload_states = true});
    Hoarder optimizer(rig.model.Parameters(), {.lr = 0.1});
    EXPECT_THAT([&] { rig.booster.boost(rig.model, optimizer); },
                Says(AllOf(HasSubstr("offload_states needs 18014398509481984"),
                           HasSubstr("are available"))));
  });
}

TEST(LowLevelZeroErrorsTest, OffloadedStatesAreNotOnTheDevice) {
  RunRanks(2, [](comm::World& world) {
    Rig here(world), away(world, {}, {.offload_states = true});
    for (Rig* rig : {&here, &away}) {
      std::ignore = rig->booster.boost(rig->model, *rig->optimizer);
      const int64_t before = world.context()->ledger().live_bytes(MemoryCategory::kOptimizerState);
      for (int step = 0; step < 3; ++step) {
        rig->booster.backward(rig->Loss(), *rig->optimizer);
        rig->optimizer->step();
        rig->optimizer->zero_grad();
      }
      const int64_t states =
          world.context()->ledger().live_bytes(MemoryCategory::kOptimizerState) - before;
      EXPECT_EQ(states == 0, rig == &away);
    }
    EXPECT_GT(away.plugin.state_context()->ledger().live_bytes(MemoryCategory::kOptimizerState), 0);
    EXPECT_EQ(WeightsOf(here.model), WeightsOf(away.model));
  });
}

// Three plain steps, then three boosted ones, under rates that a schedule sets on the optimizer
// that it was given, against six plain ones.
TEST(LowLevelZeroErrorsTest, ExistingStateAndSchedulersAreKept) {
  const TinyRunOptions options{.steps = 6};
  Weights start, want;
  for (const int num_ranks : {0, 1, 3}) {  // 0: never boosted
    RunRanks(std::max(num_ranks, 1), [&](comm::World& world) {
      TinyModel model(options);
      model.Initialize(world.context(), {.seed = 11, .dtype = options.dtype});
      optim::AdamW optimizer(model.Parameters(), testing::TinyAdamW());
      if (num_ranks == 0) start = WeightsOf(model);
      LowLevelZeroPlugin plugin(world.group(),
                                {.precision = Precision::kF64, .bucket_bytes = 2000});
      Booster booster(plugin);
      for (int64_t step = 0; step < options.steps; ++step) {
        optimizer.set_lr(0, 1e-2 / static_cast<double>(step + 1));
        const bool boosted = step >= 3 && num_ranks > 0;
        if (step == 3 && boosted) {
          EXPECT_EQ(&booster.boost(model, optimizer).optimizer, &optimizer);
        }
        const int64_t rows = boosted ? kTinyBatch / num_ranks : kTinyBatch;
        const Tensor loss = TinyLoss(model, world.context(), options, step,
                                     boosted ? world.rank() * rows : 0, rows);
        boosted ? booster.backward(loss, optimizer) : autograd::Backward(loss);
        optimizer.step();
        optimizer.zero_grad();
      }
      if (num_ranks == 0) want = WeightsOf(model);
      EXPECT_LE(WorstUpdateError(start, want, WeightsOf(model)).error, 1e-9) << num_ranks;
    });
    testing::ShareFromFirst(start);
    testing::ShareFromFirst(want);
  }
}

// fp16, two micro-batches: the first overflows on one rank.
TEST(LowLevelZeroErrorsTest, OverflowInTheMiddleOfAccumulation) {
  for (const bool no_sync : {true, false}) {
    RunRanks(2, [&](comm::World& world) {
      Rig rig(world, {.precision = Precision::kFp16, .loss_scaler = {.initial_scale = 32768}}, {},
              DType::kF16);
      rig.booster.boost(rig.model, *rig.optimizer);
      const Weights start = WeightsOf(rig.model);
      const auto window = [&](double factor) {
        for (int micro = 0; micro < 2; ++micro) {
          std::shared_ptr<void> hold;
          if (no_sync && micro == 0) hold = rig.booster.no_sync();
          const bool here = world.rank() == 1 && micro == 0;
          rig.booster.backward(autograd::Scale(rig.Loss(), here ? factor : 0.5), *rig.optimizer);
        }
        rig.optimizer->step();
        rig.optimizer->zero_grad();
      };
      window(1000);
      EXPECT_TRUE(rig.optimizer->last_step().skip);
      EXPECT_EQ(rig.plugin.loss_scale(), 16384);
      EXPECT_EQ(WeightsOf(rig.model), start);
      window(0.5);
      EXPECT_FALSE(rig.optimizer->last_step().skip);
      // -lr · d sum / d bias: 2 samples, two micro-batches of factor a half, means over ranks.
      const auto bias = rig.model.FindParameter("layers.1.bias")->data().ToVector<double>();
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(bias[i] - start.at("layers.1.bias")[i], -0.5 * 2, 2e-3);
      }
    });
  }
}

TEST(LowLevelZeroErrorsTest, Bf16HasTheBitsOfDdp) {
  RunRanks(3, [](comm::World& world) {
    const TinyRunOptions options;
    std::vector<Weights> results;
    for (const int stage : {0, 1, 2}) {
      TinyModel model(options);
      model.Initialize(world.context(), {.seed = 11});
      optim::AdamW optimizer(model.Parameters(), testing::TinyAdamW());
      std::unique_ptr<Plugin> plugin;
      if (stage == 0) {
        plugin = std::make_unique<DdpPlugin>(world.group(),
                                             TrainingOptions{.precision = Precision::kBf16});
      } else {
        plugin = std::make_unique<LowLevelZeroPlugin>(
            world.group(), TrainingOptions{.precision = Precision::kBf16, .bucket_bytes = 3000},
            LowLevelZeroOptions{.stage = stage});
      }
      Booster booster(*plugin);
      std::ignore = booster.boost(model, optimizer);
      for (int64_t step = 0; step < 8; ++step) {
        booster.backward(TinyLoss(model, world.context(), options, step, world.rank() * 12, 12),
                         optimizer);
        optimizer.step();
        optimizer.zero_grad();
      }
      results.push_back(WeightsOf(model));
    }
    EXPECT_EQ(results[1], results[0]);
    EXPECT_EQ(results[2], results[0]);
  });
}

// Three steps of 1e-3 from 1 in bf16, whose next smaller number is 1 - 2^-8: each is lost in
// rounding unless masters keep it.
TEST(LowLevelZeroErrorsTest, WithoutMastersSmallStepsAreLost) {
  for (const bool masters : {true, false}) {
    RunRanks(2, [&](comm::World& world) {
      Rig rig(world, {.precision = Precision::kBf16}, {.master_weights = masters}, DType::kBF16);
      rig.optimizer =
          std::make_unique<optim::Sgd>(rig.model.Parameters(), optim::SgdOptions{.lr = 0.5e-3});
      rig.model.FindParameter("layers.1.bias")->data().Fill(1);
      rig.booster.boost(rig.model, *rig.optimizer);
      for (int step = 0; step < 3; ++step) {
        rig.booster.backward(rig.Loss(), *rig.optimizer);
        rig.optimizer->step();
        rig.optimizer->zero_grad();
      }
      for (const double b : rig.model.FindParameter("layers.1.bias")->data().ToVector<double>()) {
        EXPECT_EQ(b, masters ? 1 - 1.0 / 256 : 1);
      }
      EXPECT_EQ(rig.optimizer->views()[0].own_master().defined(), masters);
    });
  }
}

// Sums in bf16: as exact as bf16 is, and no more.
TEST(LowLevelZeroErrorsTest, CommunicationDType) {
  RunRanks(2, [](comm::World& world) {
    Rig exact(world), rounded(world, {}, {.communication_dtype = Precision::kBf16});
    const Weights start = WeightsOf(exact.model);
    for (Rig* rig : {&exact, &rounded}) {
      std::ignore = rig->booster.boost(rig->model, *rig->optimizer);
      rig->booster.backward(rig->Loss(0.3), *rig->optimizer);
      EXPECT_EQ(rig->optimizer->views()[0].grad().dtype(), DType::kF32);
      rig->optimizer->step();
    }
    const double error =
        WorstUpdateError(start, WeightsOf(exact.model), WeightsOf(rounded.model)).error;
    EXPECT_LE(error, 5e-3);
    EXPECT_GT(error, 1e-5);
  });
}

}  // namespace low_level_zero_errors_test
}  // namespace apogee
