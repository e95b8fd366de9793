// SPDX-License-Identifier: Apache-2.0

// Loops that do something unusual with HybridParallelPlugin: a second boost, a plugin that is gone
// or has no world that fits, two models, ranks with different data or a gradient that is not
// finite.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tests/plugins/hybrid/hybrid_short_run.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace hybrid_parallel_loops_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::HybridTask;
using testing::Ids;
using testing::Initialized;
using testing::kShortSteps;
using testing::RunRanks;
using testing::Says;
using testing::ShortGpt2;
using testing::ShortGpt2Task;
using testing::Train;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

TEST(HybridParallelLoopsTest, AModelThatWasCutBefore) {
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(ShortGpt2(8));
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {}), earlier(model.Parameters(), {});
    HybridParallelPlugin plugin(world, {}, {.tp_size = 2});
    std::ignore = Booster(plugin).boost(model, optimizer);
    const Weights before = WeightsOf(model);
    EXPECT_THAT([&] { optim::AdamW(model.Parameters(), {}); },
                Says(AllOf(HasSubstr("transformer.wte.weight"), HasSubstr("has been cut"),
                           HasSubstr("before boost"))));
    const auto refuses = [&](Plugin&& other) {
      EXPECT_THAT([&] { std::ignore = Booster(other).boost(model, earlier); },
                  Says(AllOf(HasSubstr("transformer.wte.weight"), HasSubstr("boosted once"))));
      EXPECT_EQ(WeightsOf(model), before);
    };
    refuses(HybridParallelPlugin(world, {}, {.tp_size = 2}));
    refuses(HybridParallelPlugin(world, {}, {.tp_size = 1}));
    refuses(HybridParallelPlugin(world, {}, {.tp_size = 1, .stage = 1}));
    refuses(DdpPlugin(world.group()));
    refuses(LowLevelZeroPlugin(world.group()));
  });
}

// Ranks of one tp group that load by their rank in the world mix up their samples.
TEST(HybridParallelLoopsTest, RanksThatLoadDifferentData) {
  for (const int zero : {0, 2, 3}) {
    RunRanks(4, [&](comm::World& world) {
      const HybridTask task = ShortGpt2Task(8);
      const auto model = Initialized(task, world.context());
      optim::AdamW optimizer(model->Parameters(), {});
      HybridParallelPlugin plugin(world, {.precision = Precision::kF64},
                                  {.tp_size = 2, .stage = zero});
      std::string message;
      try {
        Train(task, *model, optimizer, plugin, world.rank(), world.size(), world.context());
      } catch (const Error& error) {
        message = error.what();
      }
      EXPECT_THAT(message, AllOf(HasSubstr("different inputs"), HasSubstr("data_rank()")));
    });
  }
}

// A part that is not finite, on one rank: nobody steps.
TEST(HybridParallelLoopsTest, OneRankThatOverflowsHoldsAllBack) {
  for (const int zero : {0, 1, 2, 3}) {
    RunRanks(4, [&](comm::World& world) {
      nn::Gpt2 model(ShortGpt2(8));
      model.Initialize(world.context(), {.seed = 1});
      optim::AdamW optimizer(model.Parameters(), {});
      HybridParallelPlugin plugin(world, {.precision = Precision::kFp16},
                                  {.tp_size = 2, .stage = zero});
      Booster booster(plugin);
      Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
      const double scale = plugin.loss_scale();
      bool overflow = world.rank() == 3;
      model.FindParameter("transformer.h.0.mlp.c_fc.weight")
          ->AddGradHook([&](autograd::Parameter& parameter) {
            if (overflow) parameter.grad().Fill(std::numeric_limits<double>::infinity());
          });
      const Tensor ids = Ids(8, 0, 0, 2, 0, world.context());
      const auto train = [&] {
        booster.backward(boosted.criterion(boosted.model(ids), ids), optimizer);
        optimizer.step();
        optimizer.zero_grad();
      };
      train();
      EXPECT_TRUE(optimizer.last_step().skip) << "rank " << world.rank();
      EXPECT_EQ(plugin.loss_scale(), scale / 2) << "rank " << world.rank();
      overflow = false;
      train();
      EXPECT_FALSE(optimizer.last_step().skip) << "rank " << world.rank();
    });
  }
}

// After boost refused, a caller that goes on hears why, too.
TEST(HybridParallelLoopsTest, APluginWithoutAWorldThatFits) {
  RunRanks(3, [](comm::World& world) {
    HybridParallelPlugin plugin(world, {}, {.tp_size = 2});
    const auto refused = Says(HasSubstr("tp_size 2 does not divide the world of 3 ranks"));
    EXPECT_THAT([&] { (void)plugin.NoSync(); }, refused);
    EXPECT_THAT([&] { plugin.loss_scale(); }, refused);
  });
}

// Layers keep what they need of the group; only steps need the plugin. (Of stage 3 every use of the
// model does.)
TEST(HybridParallelLoopsTest, AModelOutlivesItsPlugin) {
  for (const int zero : {0, 1, 2}) {
    RunRanks(4, [&](comm::World& world) {
      const HybridTask task = ShortGpt2Task(7);
      const auto train = [&](nn::Module& model, optim::Optimizer& optimizer) {
        HybridParallelPlugin plugin(world, {.precision = Precision::kF64},
                                    {.tp_size = 2, .stage = zero});
        Weights whole =
            Train(task, model, optimizer, plugin, plugin.data_rank(), 2, world.context());
        for (const auto& p : model.Parameters()) {
          EXPECT_EQ(p->is_part(), plugin.tensor_parallel()->ShardOf(*p) != nullptr) << p->name();
        }
        return whole;
      };
      const auto model = Initialized(task, world.context());
      optim::AdamW optimizer(model->Parameters(), {});
      const Weights whole = train(*model, optimizer);
      const auto plain = Initialized(task, world.context());
      for (const auto& p : plain->Parameters()) {
        p->set_value(Tensor::FromVector<double>(whole.at(p->name()), p->shape(), world.context()));
      }
      model->Train(false);
      const Tensor ids = Ids(7, 0, 0, 2, 0, world.context());
      const std::vector<double> got = (*model)(ids).ToVector<double>();
      const std::vector<double> want = (*plain)(ids).ToVector<double>();
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-12);
      EXPECT_THAT([&] { optimizer.step(); }, Says(HasSubstr("after its plugin was destroyed")));
    });
  }
}

// Two models train by turns, each with a plugin of its own.
TEST(HybridParallelLoopsTest, TwoModelsInOneWorld) {
  const HybridTask task = ShortGpt2Task(7);
  RunRanks(4, [&](comm::World& world) {
    const auto alone = Initialized(task, world.context());
    optim::AdamW alone_optimizer(alone->Parameters(), {});
    HybridParallelPlugin alone_plugin(world, {.precision = Precision::kF64},
                                      {.tp_size = 2, .stage = 2});
    const Weights want = Train(task, *alone, alone_optimizer, alone_plugin,
                               alone_plugin.data_rank(), 2, world.context());
    const auto first = Initialized(task, world.context());
    const auto second = Initialized(task, world.context());
    optim::AdamW first_optimizer(first->Parameters(), {}),
        second_optimizer(second->Parameters(), {});
    HybridParallelPlugin first_plugin(world, {.precision = Precision::kF64},
                                      {.tp_size = 2, .stage = 2});
    HybridParallelPlugin second_plugin(world, {.precision = Precision::kF64}, {.tp_size = 4});
    Booster first_booster(first_plugin), second_booster(second_plugin);
    Boosted one = first_booster.boost(*first, first_optimizer, {.criterion = task.criterion});
    Boosted two = second_booster.boost(*second, second_optimizer, {.criterion = task.criterion});
    for (int64_t step = 0; step < kShortSteps; ++step) {
      const int64_t begin = first_plugin.data_rank() * 4;
      const auto ids = [&](int64_t from, int64_t count, int64_t shift) {
        return Ids(7, step, from, count, shift, world.context());
      };
      const Tensor first_loss = one.criterion(one.model(ids(begin, 4, 0)), ids(begin, 4, 1));
      const Tensor second_loss = two.criterion(two.model(ids(0, 8, 0)), ids(0, 8, 1));
      second_booster.backward(second_loss, second_optimizer);
      first_booster.backward(first_loss, first_optimizer);
      first_optimizer.step();
      second_optimizer.step();
      first_optimizer.zero_grad();
      second_optimizer.zero_grad();
    }
    const Weights start = WeightsOf(*Initialized(task, world.context()));
    for (const HybridParallelPlugin* plugin : {&first_plugin, &second_plugin}) {
      const nn::Module& model = plugin == &first_plugin ? *first : *second;
      Weights got;
      for (const auto& p : model.Parameters()) {
        got[p->name()] = plugin->WholeValue(*p).ToVector<double>();
      }
      EXPECT_LE(WorstUpdateError(start, want, got).error, 1e-9);
    }
  });
}

}  // namespace hybrid_parallel_loops_test
}  // namespace apogee
