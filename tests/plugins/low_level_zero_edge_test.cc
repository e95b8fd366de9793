// SPDX-License-Identifier: Apache-2.0

// Loops that do something unusual: boosted with ZeRO or DDP they do what the plain loop does.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tests/plugins/low_level_zero_loop.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace low_level_zero_edge_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;
using testing::Weights;
using testing::WeightsOf;

TEST(LowLevelZeroEdgeTest, HooksThatWereAddedAfterBoostChangeTheGradient) {
  ExpectSame([](Loop& loop) {
    for (const auto& parameter : loop.model.Parameters()) {
      parameter->AddGradHook([](autograd::Parameter& p) {
        p.set_grad(ops::Scale(p.grad(), p.shape().rank() == 1 ? 0.25 : 3.0));
      });
    }
    for (int64_t step = 0; step < 4; ++step) {
      loop.Backward(loop.Loss(step));
      loop.optimizer->step();
      loop.optimizer->zero_grad();
    }
  });
}

// The booster knows the first optimizer only.
TEST(LowLevelZeroEdgeTest, ASecondOptimizerStepsOnMeans) {
  ExpectSame(
      [](Loop& loop) {
        const auto rest = Momentum({loop.Find("layers.1.weight"), loop.Find("layers.1.bias")});
        for (int64_t step = 0; step < 4; ++step) {
          for (const int first : {0, 6}) {
            std::shared_ptr<void> hold;
            if (loop.booster != nullptr && first == 0) hold = loop.booster->no_sync();
            loop.Backward(autograd::Scale(loop.Loss(step, first, first + 6), 1));
          }
          loop.optimizer->step();
          rest->step();
          loop.optimizer->zero_grad();
          rest->zero_grad();
        }
      },
      [](Loop& loop) {
        loop.optimizer = Momentum({loop.Find("layers.0.weight"), loop.Find("layers.0.bias")});
      });
}

TEST(LowLevelZeroEdgeTest, ZerosAreGradientsAndFrozenParametersComeBack) {
  ExpectSame([](Loop& loop) {
    const auto bias = loop.Find("layers.1.bias");
    for (int64_t step = 0; step < 9; ++step) {
      bias->set_requires_grad(step % 3 != 1);
      loop.Backward(loop.Loss(step));
      if (step == 4) loop.optimizer->zero_grad(/*set_to_none=*/false);
      loop.optimizer->step();
      loop.optimizer->zero_grad(/*set_to_none=*/step % 2 == 0);
    }
  });
}

// A loop that clears gradients parameter by parameter, one of them before the step.
TEST(LowLevelZeroEdgeTest, ParametersClearTheirGradients) {
  ExpectSame([](Loop& loop) {
    for (int64_t step = 0; step < 6; ++step) {
      loop.Backward(loop.Loss(step));
      if (step % 3 == 1) loop.Find("layers.1.bias")->zero_grad();
      if (step % 3 == 2) loop.Find("layers.0.weight")->zero_grad(/*set_to_none=*/false);
      loop.optimizer->step();
      for (const auto& parameter : loop.model.Parameters()) parameter->zero_grad(step % 2 == 0);
    }
  });
}

TEST(LowLevelZeroEdgeTest, ClosuresAndEvaluationBetweenSteps) {
  ExpectSame([](Loop& loop) {
    for (int64_t step = 0; step < 4; ++step) {
      loop.optimizer->step([&] {
        loop.optimizer->zero_grad();
        const Tensor loss = loop.Loss(step);
        loop.Backward(loss);
        return loss;
      });
      loop.model.Train(false);
      loop.model(Tensor::Full({1, 4}, loop.dtype, 0.5, loop.context));
      loop.model.Train();
    }
  });
}

TEST(LowLevelZeroEdgeTest, EveryNormClips) {
  for (const auto kind : {optim::NormKind::kL1, optim::NormKind::kL2, optim::NormKind::kMax}) {
    ExpectSame([&](Loop& loop) {
      loop.optimizer->set_step_options({.max_norm = 0.05, .norm_kind = kind});
      for (int64_t step = 0; step < 4; ++step) {
        loop.Backward(loop.Loss(step));
        loop.optimizer->step();
        loop.optimizer->zero_grad();
        EXPECT_LT(loop.optimizer->last_step().clip_factor, 1);
      }
    });
  }
}

// NaN in one element of one rank's shard reaches every weight through the norm.
TEST(LowLevelZeroEdgeTest, ProceedingWithNaNSpoilsEverythingOnEveryRank) {
  for (const auto kind : {optim::NormKind::kL1, optim::NormKind::kL2, optim::NormKind::kMax}) {
    RunRanks(3, [&](comm::World& world) {
      Loop loop(world.context(), DType::kF32);
      MakeMomentum(loop);
      LowLevelZeroPlugin plugin(world.group());
      loop.Boost(plugin);
      loop.optimizer->set_step_options(
          {.max_norm = 1, .norm_kind = kind, .nonfinite = optim::NonFinitePolicy::kProceed});
      loop.Find("layers.1.bias")->AddGradHook([&](autograd::Parameter& p) {
        if (world.rank() == 1) p.grad().Slice(0, 0, 1).Fill(std::nan(""));
      });
      loop.Backward(loop.Loss(0));
      loop.optimizer->step();
      for (const auto& [name, values] : WeightsOf(loop.model)) {
        for (const double value : values) EXPECT_TRUE(std::isnan(value)) << name;
      }
    });
  }
}

// Options that were set after boost say nothing of the scale: it is the plugin's.
TEST(LowLevelZeroEdgeTest, StepOptionsAfterBoostKeepTheLossScale) {
  for (const int stage : {0, 1, 2}) {
    RunRanks(2, [&](comm::World& world) {
      Loop loop(world.context(), DType::kF16);
      loop.optimizer =
          std::make_unique<optim::Sgd>(loop.model.Parameters(), optim::SgdOptions{.lr = 0.5});
      std::unique_ptr<Plugin> plugin;
      if (stage == 0) {
        plugin = std::make_unique<DdpPlugin>(
            world.group(),
            TrainingOptions{.precision = Precision::kFp16, .loss_scaler = {.initial_scale = 1024}});
      } else {
        plugin = std::make_unique<LowLevelZeroPlugin>(
            world.group(),
            TrainingOptions{.precision = Precision::kFp16, .loss_scaler = {.initial_scale = 1024}},
            LowLevelZeroOptions{.stage = stage});
      }
      loop.Boost(*plugin);
      loop.optimizer->set_step_options({.nonfinite = optim::NonFinitePolicy::kThrow});
      const auto bias = loop.Find("layers.1.bias");
      const double before = bias->data().ToVector<double>()[0];
      loop.Backward(autograd::Sum(loop.model(Tensor::Full({2, 4}, loop.dtype, 0.5, loop.context))));
      loop.optimizer->step();
      EXPECT_NEAR(bias->data().ToVector<double>()[0] - before, -0.5 * 2, 2e-3);
    });
  }
}

// A loop that scales its loss by hand, before and after boost.
TEST(LowLevelZeroEdgeTest, ALossScaleOfTheLoopsOwnIsKept) {
  ExpectSame(
      [](Loop& loop) {
        for (int64_t step = 0; step < 4; ++step) {
          loop.Backward(autograd::Scale(loop.Loss(step), 64));
          loop.optimizer->step();
          loop.optimizer->zero_grad();
        }
      },
      [](Loop& loop) {
        MakeMomentum(loop);
        loop.optimizer->set_step_options({.loss_scale = 64});
      });
}

TEST(LowLevelZeroEdgeTest, AGradientThatWasSetAfterBackwardIsRefused) {
  RunRanks(2, [](comm::World& world) {
    Loop loop(world.context(), DType::kF32);
    MakeMomentum(loop);
    LowLevelZeroPlugin plugin(world.group());
    loop.Boost(plugin);
    loop.Backward(loop.Loss(0));
    const Weights before = WeightsOf(loop.model);
    const auto bias = loop.Find("layers.1.bias");
    bias->set_grad(Tensor::Zeros({3}, DType::kF32, loop.context));
    EXPECT_THAT([&] { loop.optimizer->step(); },
                Says(AllOf(HasSubstr("layers.1.bias"), HasSubstr("gradient hook"))));
    EXPECT_EQ(WeightsOf(loop.model), before);
    bias->zero_grad();
    loop.optimizer->step();
    EXPECT_NE(WeightsOf(loop.model), before);
  });
}

// Sums that were begun in bf16 go on in f32, and so do those of the whole chunk.
TEST(LowLevelZeroEdgeTest, GradientsFromBeforeBoostAreKeptInF32) {
  RunRanks(2, [](comm::World& world) {
    Loop loop(world.context(), DType::kBF16);
    MakeMomentum(loop);
    autograd::Backward(loop.Loss(0));
    const double before = loop.Find("layers.1.bias")->grad().ToVector<double>()[0];
    LowLevelZeroPlugin plugin(world.group(), {.precision = Precision::kBf16});
    loop.Boost(plugin);
    EXPECT_EQ(loop.Find("layers.1.bias")->grad().ToVector<double>()[0], before);
    loop.Backward(loop.Loss(0));
    for (const optim::ParamView& view : loop.optimizer->views()) {
      EXPECT_EQ(view.grad().dtype(), DType::kF32) << view.name();
    }
  });
}

// Three steps, then a new loop from what the first one saved while its parameters were on their
// way.
TEST(LowLevelZeroEdgeTest, SavedStatesGoOn) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    RunRanks(3, [&](comm::World& world) {
      const auto run = [&](Loop& loop, int64_t begin, int64_t end) {
        for (int64_t step = begin; step < end; ++step) {
          loop.Backward(loop.Loss(step));
          loop.optimizer->step();
          loop.optimizer->zero_grad();
        }
      };
      const DType dtype = precision == Precision::kF32 ? DType::kF32 : DType::kBF16;
      Loop saved(world.context(), dtype), resumed(world.context(), dtype, /*seed=*/2);
      LowLevelZeroPlugin plugins[] = {
          LowLevelZeroPlugin(world.group(), {.precision = precision, .bucket_bytes = 100}),
          LowLevelZeroPlugin(world.group(), {.precision = precision, .bucket_bytes = 100})};
      for (Loop* loop : {&saved, &resumed}) {
        MakeMomentum(*loop);
        loop->rank = world.rank();
        loop->num_ranks = 3;
        loop->Boost(plugins[loop == &resumed]);
      }
      run(resumed, 7, 8);
      run(saved, 0, 3);
      for (const auto& parameter : saved.model.Parameters()) {
        resumed.Find(parameter->name())->data().CopyFrom(parameter->data());
      }
      const absl::Status status = resumed.optimizer->load_state_dict(saved.optimizer->state_dict());
      EXPECT_TRUE(status.ok()) << Message(status);
      run(saved, 3, 6);
      run(resumed, 3, 6);
      EXPECT_EQ(WeightsOf(resumed.model), WeightsOf(saved.model));
    });
  }
}

// The dict of a run with masters, loaded into one without: weights come with it, to all ranks.
TEST(LowLevelZeroEdgeTest, WeightsOfASavedStateReachEveryRank) {
  RunRanks(2, [](comm::World& world) {
    Loop saved(world.context(), DType::kBF16), loaded(world.context(), DType::kF32, /*seed=*/2);
    LowLevelZeroPlugin bf16(world.group(), {.precision = Precision::kBf16}), f32(world.group());
    MakeMomentum(saved);
    MakeMomentum(loaded);
    saved.Boost(bf16);
    loaded.Boost(f32);
    saved.Backward(saved.Loss(world.rank()));
    saved.optimizer->step();
    const absl::Status status = loaded.optimizer->load_state_dict(saved.optimizer->state_dict());
    EXPECT_TRUE(status.ok()) << Message(status);
    for (const auto& parameter : loaded.model.Parameters()) {
      const Tensor rounded = parameter->data().To(DType::kBF16);
      EXPECT_EQ(rounded.ToVector<double>(),
                saved.Find(parameter->name())->data().ToVector<double>());
    }
  });
}

TEST(LowLevelZeroEdgeTest, OnePluginRunsOneModel) {
  RunRanks(2, [](comm::World& world) {
    DdpPlugin ddp(world.group());
    LowLevelZeroPlugin zero(world.group());
    for (Plugin* plugin : std::initializer_list<Plugin*>{&ddp, &zero}) {
      Loop first(world.context(), DType::kF32), second(world.context(), DType::kF32);
      MakeMomentum(first);
      MakeMomentum(second);
      first.Boost(*plugin);
      EXPECT_THAT([&] { second.Boost(*plugin); },
                  Says(AllOf(HasSubstr(plugin->name()), HasSubstr("one plugin per model"))));
    }
  });
}

TEST(LowLevelZeroEdgeTest, OptimizersThatDifferAreToldApart) {
  for (const bool zero : {false, true}) {
    for (const bool order : {false, true}) {
      RunRanks(2, [&](comm::World& world) {
        Loop loop(world.context(), DType::kF32);
        const bool odd = world.rank() == 1;
        std::vector<autograd::ParameterPtr> parameters = loop.model.Parameters();
        if (odd && order) std::reverse(parameters.begin(), parameters.end());
        loop.optimizer = std::make_unique<optim::Sgd>(
            parameters, optim::SgdOptions{.lr = odd && !order ? 0.2 : 0.1});
        std::unique_ptr<Plugin> plugin;
        if (zero) {
          plugin = std::make_unique<LowLevelZeroPlugin>(world.group());
        } else {
          plugin = std::make_unique<DdpPlugin>(world.group());
        }
        EXPECT_THAT([&] { loop.Boost(*plugin); },
                    Says(AllOf(HasSubstr("optimizers differ"), HasSubstr("rank 1"),
                               HasSubstr(order ? "layers.1.bias" : "lr=0.2"))));
      });
    }
  }
}

TEST(LowLevelZeroEdgeTest, AStepWithoutItsPluginIsRefused) {
  RunRanks(2, [](comm::World& world) {
    Loop loop(world.context(), DType::kF32);
    MakeMomentum(loop);
    {
      LowLevelZeroPlugin plugin(world.group());
      loop.Boost(plugin);
      loop.Backward(loop.Loss(0));
      loop.optimizer->step();
    }
    EXPECT_THAT([&] { loop.optimizer->step(); },
                Says(AllOf(HasSubstr("low_level_zero"), HasSubstr("must outlive"))));
  });
}

}  // namespace low_level_zero_edge_test
}  // namespace apogee
