// SPDX-License-Identifier: Apache-2.0

// Balance of experts over ranks: the bias without a loss and the auxiliary losses, in pipelines and
// under sequence parallelism too.
#include <gmock/gmock.h>

#include <cmath>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/tests/plugins/hybrid/expert_run.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace expert_balance_test {

using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;
using testing::expert_run::ExpertConfig;
using testing::expert_run::ExpertRun;
using testing::expert_run::kExperts;
using testing::expert_run::kTokens;

constexpr auto kAllToAll = nn::parallel::SequenceMode::kAllToAll;
constexpr auto kRing = nn::parallel::SequenceMode::kRingAttention;

// The bias without a loss follows the choices of all ranks.
TEST(ExpertBalanceTest, ChoiceBiasIsThatOfOneRank) {
  nn::DecoderConfig config = ExpertConfig();
  config.block.moe.choice_bias = true;
  const auto biases = [&](const comm::World& world, const HybridParallelOptions& options) {
    ExpertRun run(world, options, config);
    run.Boost();
    const int part = run.plugin.data_rank(), parts = run.plugin.data_size();
    for (int step = 0; step < 6; ++step) {
      for (int64_t sample = part; sample < 4; sample += parts) {
        std::vector<int64_t> ids;
        for (int64_t i = 0; i < kTokens; ++i) ids.push_back((i * i * 7 + 5 * sample + step) % 19);
        run.boosted->model(Tensor::FromVector(ids, {1, kTokens}, world.context()));
      }
      nn::UpdateChoiceBias(run.model, 0.0625);
    }
    std::vector<double> values;
    for (const nn::Moe* layer : nn::MoeLayers(run.model)) {
      const std::vector<double> own = layer->choice_bias()->data().ToVector<double>();
      values.insert(values.end(), own.begin(), own.end());
    }
    return values;
  };
  const auto expect_same = [&](int num_ranks, const HybridParallelOptions& options) {
    RunRanks(num_ranks, [&](comm::World& world) {
      const std::vector<double> want =
          biases(comm::World(0, 1, world.context(), nullptr), HybridParallelOptions{});
      EXPECT_NE(want, std::vector<double>(want.size(), 0.0));
      EXPECT_EQ(biases(world, options), want);
    });
  };
  expect_same(2, {.ep_size = 2});
  expect_same(4, {.tp_size = 2, .ep_size = 2});
  expect_same(4, {.stage = 3});
  expect_same(4, {.sp_size = 2, .sp_mode = kAllToAll, .ep_size = 2});
}

// Its mean over the ranks is the loss of one rank.
TEST(ExpertBalanceTest, TheAuxiliaryLossIsThatOfOneRank) {
  constexpr int64_t kLength = 8;  // 2 ranks with two pieces each
  const auto loss = [](const comm::World& world, const HybridParallelOptions& options,
                       const nn::DecoderConfig& config) {
    ExpertRun run(world, options, config);
    run.Boost();
    const int part = run.plugin.data_rank(), samples = 4 / run.plugin.data_size();
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < samples * kLength; ++i) {
      const int64_t at = part * samples * kLength + i;
      ids.push_back((at * at * 7 + 3 * at) % 19);
    }
    run.boosted->model(Tensor::FromVector(ids, {samples, kLength}, world.context()));
    return nn::AuxiliaryLoss(run.boosted->model).Item();
  };
  for (const nn::BalanceLoss balance :
       {nn::BalanceLoss::kMicroBatch, nn::BalanceLoss::kSequence, nn::BalanceLoss::kHfLayers}) {
    nn::DecoderConfig config = ExpertConfig();
    config.max_tokens = kLength;
    config.block.moe.balance = balance;
    config.block.moe.balance_coefficient = 0.5;
    config.block.moe.z_coefficient = 0.1;
    RunRanks(4, [&](comm::World& world) {
      const double want =
          loss(comm::World(0, 1, world.context(), nullptr), HybridParallelOptions{}, config);
      for (const HybridParallelOptions& options :
           {HybridParallelOptions{.ep_size = 2},
            HybridParallelOptions{.sp_size = 2, .sp_mode = kAllToAll, .ep_size = 2},
            HybridParallelOptions{.sp_size = 2, .sp_mode = kRing},
            HybridParallelOptions{.tp_size = 2, .sp_size = 2, .sp_mode = kRing}}) {
        const Tensor sum =
            Tensor::Full({}, DType::kF64, loss(world, options, config), world.context());
        world.group()->AllReduce(sum);
        EXPECT_NEAR(sum.Item() / world.size(), want, 2e-6 * want);
      }
    });
  }
}

// Each stage has the loss of its own layers. Losses and updates are those of one rank that cuts the
// batch into the same micro-batches.
TEST(ExpertBalanceTest, PipelinesHaveTheAuxiliaryLossOfAllStages) {
  nn::DecoderConfig config = ExpertConfig();
  config.num_layers = 4;
  config.block.moe.balance = nn::BalanceLoss::kMicroBatch;
  config.block.moe.balance_coefficient = 0.5;
  config.block.moe.z_coefficient = 0.1;
  constexpr int64_t kMicros = 3;
  using enum pipeline::ScheduleKind;
  for (const auto schedule : {k1F1B, kInterleaved, kZbv}) {
    RunRanks(2, [&](comm::World& world) {
      const auto train = [&](const comm::World& ranks, const HybridParallelOptions& options,
                             const auto& run_batch) {
        ExpertRun run(ranks, options, config);
        const auto values = [&] {
          std::vector<double> all;
          for (const auto& parameter : run.model.Parameters()) {
            const std::vector<double> own = run.plugin.WholeValue(*parameter).ToVector<double>();
            all.insert(all.end(), own.begin(), own.end());
          }
          return all;
        };
        run.Boost();
        std::vector<double> before = values();
        const double loss = run_batch(run);
        run.boosted->optimizer.step();
        std::vector<double> result = values();
        for (size_t i = 0; i < result.size(); ++i) result[i] -= before[i];
        result.push_back(loss);
        return result;
      };
      const Tensor tokens = [&] {
        std::vector<int64_t> ids;
        for (int64_t i = 0; i < 2 * kMicros * kTokens; ++i) ids.push_back((i * i * 7 + 3 * i) % 19);
        return Tensor::FromVector(ids, {2 * kMicros, kTokens}, world.context());
      }();
      const std::vector<double> want = train(
          comm::World(0, 1, world.context(), nullptr), HybridParallelOptions{},
          [&](ExpertRun& run) {
            double sum = 0;
            for (int64_t m = 0; m < kMicros; ++m) {
              const Tensor part = tokens.Slice(0, 2 * m, 2).Clone();
              Tensor loss = run.boosted->criterion(run.boosted->model(part), part);
              loss = autograd::Add(loss, nn::AuxiliaryLoss(run.model));
              run.booster.backward(autograd::Scale(loss, 1.0 / kMicros), run.boosted->optimizer);
              sum += loss.Item() / kMicros;
            }
            return sum;
          });
      const std::vector<double> got = train(
          world,
          {.pp_size = 2,
           .schedule = schedule,
           .num_model_chunks = schedule == k1F1B ? 1 : 2,
           .num_microbatches = kMicros},
          [&](ExpertRun& run) {
            return run.booster
                .execute_pipeline({tokens, tokens}, run.boosted->model, run.boosted->criterion,
                                  &run.boosted->optimizer, {.auxiliary = nn::AuxiliaryLossOf})
                .loss.Item();
          });
      ASSERT_EQ(got.size(), want.size());
      EXPECT_NEAR(got.back(), want.back(), 2e-6 * want.back());
      double error = 0, norm = 0;
      for (size_t i = 0; i + 1 < want.size(); ++i) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
      }
      EXPECT_LT(std::sqrt(error / norm), 1e-5);
    });
  }
}

TEST(ExpertBalanceTest, ABalanceOfAllLayersNeedsAllOfThem) {
  nn::DecoderConfig config = ExpertConfig();
  config.block.moe.balance = nn::BalanceLoss::kHfLayers;
  RunRanks(2, [&](comm::World& world) {
    ExpertRun run(world, {.pp_size = 2, .num_microbatches = 2}, config);
    run.Boost();
    const Tensor tokens = Tensor::Zeros({4, kTokens}, DType::kI64, world.context());
    EXPECT_THAT(
        [&] {
          run.booster.execute_pipeline({tokens, tokens}, run.boosted->model, run.boosted->criterion,
                                       &run.boosted->optimizer, {.auxiliary = nn::AuxiliaryLossOf});
        },
        Says(HasSubstr("\"model.layers.0.mlp\" has the balance hf_layers, which takes the tokens "
                       "of all layers together")));
  });
}

// A stage has the biases of its own layers.
TEST(ExpertBalanceTest, ChoiceBiasInAPipeline) {
  nn::DecoderConfig config = ExpertConfig();
  config.block.moe.choice_bias = true;
  RunRanks(2, [&](comm::World& world) {
    const comm::World one(0, 1, world.context(), nullptr);
    const Tensor tokens = ExpertRun(one, HybridParallelOptions{}, config).Tokens(one);
    const auto biases = [&](const comm::World& ranks, const HybridParallelOptions& options) {
      ExpertRun run(ranks, options, config);
      run.Boost();
      run.booster.execute_pipeline({tokens, tokens}, run.boosted->model, run.boosted->criterion,
                                   &run.boosted->optimizer);
      nn::UpdateChoiceBias(run.model, 0.0625);
      std::vector<std::vector<double>> values;
      for (const nn::Moe* layer : nn::MoeLayers(run.model)) {
        const bool here = layer->choice_bias()->is_here();
        values.push_back(here ? layer->choice_bias()->data().ToVector<double>()
                              : std::vector<double>());
      }
      return values;
    };
    const auto want = biases(one, HybridParallelOptions{});
    const auto got = biases(world, {.pp_size = 2, .num_microbatches = 3});
    const auto stage = static_cast<size_t>(world.rank());
    EXPECT_EQ(got[stage], want[stage]);
    EXPECT_NE(want[stage], std::vector<double>(kExperts));
    EXPECT_TRUE(got[1 - stage].empty());
  });
}

}  // namespace expert_balance_test
}  // namespace apogee
