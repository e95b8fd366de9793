// SPDX-License-Identifier: Apache-2.0

// Expert parallelism: its traffic, what it refuses, and routers that fail. That it computes what
// one rank computes is shown by the matrix (cells with "moe" and "ep").
#include "apogee/nn/parallel/experts/expert_parallel.h"

#include <gmock/gmock.h>

#include <limits>
#include <numeric>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/optim/registry.h"
#include "apogee/tests/plugins/hybrid/expert_run.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace expert_parallel_test {

using comm::CollectiveKind;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LaunchRanks;
using testing::RunRanks;
using testing::Says;
using testing::expert_run::ExpertConfig;
using testing::expert_run::ExpertRun;
using testing::expert_run::kExperts;
using testing::expert_run::kHidden;
using testing::expert_run::kSamples;
using testing::expert_run::kTokens;
using testing::expert_run::kTopK;

// Per layer: the counts, rows to the experts and back; and in backward rows back and forth. The
// bytes are those of the rows that leave a rank.
TEST(ExpertParallelTest, OnlyRowsForOtherRanksAreSent) {
  for (const int ep : {2, 4}) {
    RunRanks(ep, [&](comm::World& world) {
      ExpertRun run(world, {.ep_size = ep});
      run.Boost();
      const comm::GroupPtr group = run.plugin.expert_parallel()->group();
      const auto used = [&](const std::function<void()>& fn) {
        const comm::Traffic before = group->traffic();
        fn();
        return group->traffic() - before;
      };
      const Tensor tokens = run.Tokens(world);
      Tensor loss;
      const comm::Traffic forward =
          used([&] { loss = run.boosted->criterion(run.boosted->model(tokens), tokens); });
      int64_t leaving = 0;  // rows
      for (const nn::Moe* layer : nn::MoeLayers(run.model)) {
        const std::vector<int64_t>& counts = layer->record().counts;
        const int64_t own = kExperts / ep, first = world.rank() * own;
        const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
        EXPECT_EQ(all, kSamples * kTokens * kTopK);
        leaving +=
            all - std::accumulate(counts.begin() + first, counts.begin() + first + own, int64_t{0});
      }
      // The rows that came from others go back.
      const Tensor coming =
          Tensor::Full({1}, DType::kF64, static_cast<double>(leaving), world.context());
      group->AllReduce(coming);
      const int64_t counts_bytes = 2 * kExperts * 8, row = kHidden * 4;
      const int64_t received =
          (forward.bytes(CollectiveKind::kAllToAll) - counts_bytes) / row - leaving;
      const Tensor all_received =
          Tensor::Full({1}, DType::kF64, static_cast<double>(received), world.context());
      group->AllReduce(all_received);
      EXPECT_EQ(all_received.Item(), coming.Item());
      EXPECT_EQ(forward.calls(CollectiveKind::kAllToAll), 2 * 3);
      const comm::Traffic backward =
          used([&] { run.booster.backward(loss, run.boosted->optimizer); });
      EXPECT_EQ(backward.calls(CollectiveKind::kAllToAll), 2 * 2);
      EXPECT_EQ(backward.bytes(CollectiveKind::kAllToAll), (leaving + received) * row);
    });
  }
}

// The norm takes one sum over the ranks, however many experts and layers there are.
TEST(ExpertParallelTest, AStepHasTheSameNumberOfCollectivesForAnyNumberOfExperts) {
  for (const int stage : {0, 1}) {
    RunRanks(4, [&](comm::World& world) {
      const auto calls = [&](int64_t layers, int64_t experts) {
        nn::DecoderConfig config = ExpertConfig();
        config.num_layers = layers;
        config.block.moe.num_experts = experts;
        ExpertRun run(world, {.ep_size = 2, .stage = stage}, config, {.max_norm = 1});
        run.Boost();
        run.Backward(run.Tokens(world));
        using enum comm::Axis;
        const comm::GroupPtr holders =
            stage == 0 ? run.plugin.mesh().group({kPp, kEp, kTp}) : world.group();
        const auto all_reduces = [&] {
          return holders->traffic().calls(CollectiveKind::kAllReduce);
        };
        const int64_t before = all_reduces();
        run.boosted->optimizer.step();
        return all_reduces() - before;
      };
      const int64_t few = calls(1, 4);
      EXPECT_GE(few, 1);
      EXPECT_EQ(calls(3, 8), few);
    });
  }
}

TEST(ExpertParallelTest, WhatDoesNotFitIsRefused) {
  RunRanks(4, [](comm::World& world) {
    const auto boost = [&](const HybridParallelOptions& options,
                           const nn::DecoderConfig& config = ExpertConfig()) {
      return [&world, options, config] { ExpertRun(world, options, config).Boost(); };
    };
    EXPECT_THAT(boost({.ep_size = 3}),
                Says(HasSubstr("ep_size 3 does not divide the world of 4 ranks")));
    EXPECT_THAT(boost({.tp_size = 2, .ep_size = 4}),
                Says(HasSubstr("ep_size 4 x tp_size 2 = 8 does not divide the world of 4 ranks")));
    EXPECT_THAT(boost({.ep_size = 0}), Says(HasSubstr("ep_size must be at least 1, got 0")));
    nn::DecoderConfig config = ExpertConfig();
    config.block.moe.num_experts = 6;
    EXPECT_THAT(boost({.ep_size = 4}, config),
                Says(HasSubstr("ep_size 4 does not divide the 6 experts of model.layers.0.mlp")));
    config.block.moe = {};
    EXPECT_THAT(boost({.ep_size = 2}, config), Says(HasSubstr("has no mixture of experts")));
    config = ExpertConfig();
    config.block.moe.capacity_factor = 1;
    ExpertRun run(world, {.ep_size = 2}, config);
    run.Boost();
    EXPECT_THAT([&] { run.boosted->model(run.Tokens(world)); },
                Says(AllOf(HasSubstr("capacity_factor 1 drops tokens by their order"),
                           HasSubstr("leave it out"))));
  });
}

// Their messages are averages over ranks that must hold the same parameters.
TEST(ExpertParallelTest, ACapacityNeedsTheWholeMicroBatch) {
  nn::DecoderConfig config = ExpertConfig();
  config.block.moe.capacity_factor = 1.25;
  for (const int ep : {1, 2}) {
    RunRanks(2, [&](comm::World& world) {
      ExpertRun run(world, {.ep_size = ep}, config);
      run.Boost();
      EXPECT_THAT([&] { run.boosted->model(run.Tokens(world)); },
                  Says(HasSubstr("\"model.layers.0.mlp\": capacity_factor 1.25 drops tokens by "
                                 "their order in the whole micro-batch")));
    });
  }
}

TEST(ExpertParallelTest, OptimizersWith1BitMessagesAreRefused) {
  RunRanks(2, [](comm::World& world) {
    nn::Decoder model(ExpertConfig());
    model.Initialize(world.context(), {.seed = 1});
    const optim::OptimizerRegistry optimizers;
    const auto optimizer =
        ValueOrThrow(optimizers.Make("onebit_adam", model.Parameters(), {{"lr", "0.1"}}));
    HybridParallelPlugin plugin(world, {}, {.ep_size = 2});
    Booster booster(plugin);
    EXPECT_THAT([&] { (void)booster.boost(model, *optimizer); },
                Says(AllOf(HasSubstr("ep_size spreads experts"), HasSubstr("use ep_size 1"))));
  });
}

// An expert that this rank lacks cannot be read by mistake.
TEST(ExpertParallelTest, ValuesOfOtherRanksExperts) {
  RunRanks(2, [](comm::World& world) {
    ExpertRun run(world, {.ep_size = 2});
    run.Boost();
    const auto other =
        run.model.FindParameter(world.rank() == 0 ? "model.layers.0.mlp.experts.7.up_proj.weight"
                                                  : "model.layers.0.mlp.experts.0.up_proj.weight");
    EXPECT_FALSE(other->is_here());
    EXPECT_THAT([&] { other->value(); }, Says(HasSubstr("is not on this rank: it is an expert's")));
    for (const auto& parameter : run.model.Parameters()) {
      EXPECT_EQ(run.plugin.WholeValue(*parameter).shape(), parameter->shape());
    }
  });
}

// One rank's router fails: every rank gets an error that says where, and nobody waits forever.
TEST(ExpertParallelTest, ARouterWithoutNumbersEndsTheRun) {
  const absl::Status status = LaunchRanks(
      {.num_ranks = 4, .threads_per_rank = 1, .timeout_seconds = 30}, [](comm::World& world) {
        ExpertRun run(world, {.ep_size = 4});
        run.Boost();
        run.Backward(run.Tokens(world));
        run.boosted->optimizer.step();
        if (world.rank() == 2) {
          const Tensor gate = run.model.FindParameter("model.layers.1.mlp.gate.weight")->data();
          gate.Fill(std::numeric_limits<double>::quiet_NaN());
        }
        run.Backward(run.Tokens(world));
      });
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("rank 2"), HasSubstr("model.layers.1.mlp.gate"),
                    HasSubstr("the score of expert 0 for token 0 in step 2 is not a number")));
}

}  // namespace expert_parallel_test
}  // namespace apogee
