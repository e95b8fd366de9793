// SPDX-License-Identifier: Apache-2.0

// ZeRO stage 3 computes what one rank computes, and what stage 2 computes bit for bit.
#include "apogee/plugins/gemini.h"

#include <gtest/gtest.h>

#include "apogee/autograd/grad_mode.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/gemini_run.h"
#include "apogee/tests/support/runs/tiny_run.h"

namespace apogee {
namespace gemini_test {

using testing::kTinyBatch;
using testing::PlainRun;
using testing::RunRanks;
using testing::TinyAdamW;
using testing::TinyKind;
using testing::TinyLoss;
using testing::TinyModel;
using testing::TinyRunOptions;
using testing::Weights;
using testing::WeightsOf;
using testing::WholeWeightsOf;
using testing::WorstUpdateError;

struct RunSetup {
  Precision precision = Precision::kF64;
  int num_ranks = 2;
  int64_t accumulate = 1;
  bool no_sync = false;
  int64_t chunk_bytes = 1000;
  bool evaluate_first = false;
};

Weights WeightsAfter(const nn::Module& model, const LowLevelZeroPlugin& /*plugin*/) {
  return WeightsOf(model);
}
Weights WeightsAfter(const nn::Module& model, const GeminiPlugin& plugin) {
  return WholeWeightsOf(model, plugin);
}

void Step(Booster& booster, optim::Optimizer& optimizer, nn::Module& model, comm::World& world,
          const TinyRunOptions& options, const RunSetup& setup, int64_t step) {
  const int64_t rows = kTinyBatch / setup.num_ranks / setup.accumulate;
  for (int64_t micro = 0; micro < setup.accumulate; ++micro) {
    std::shared_ptr<void> hold;
    if (setup.no_sync && micro + 1 < setup.accumulate) hold = booster.no_sync();
    const int64_t first = (world.rank() * setup.accumulate + micro) * rows;
    booster.backward(autograd::Scale(TinyLoss(model, world.context(), options, step, first, rows),
                                     1.0 / static_cast<double>(setup.accumulate)),
                     optimizer);
  }
  optimizer.step();
  optimizer.zero_grad();
}

template <typename Plugin, typename... PluginOptions>
Weights RunWith(const TinyRunOptions& options, const RunSetup& setup,
                const TrainingOptions& training, const PluginOptions&... plugin_options) {
  std::vector<Weights> results(static_cast<size_t>(setup.num_ranks));
  RunRanks(setup.num_ranks, [&](comm::World& world) {
    TinyModel model(options);
    model.Initialize(world.context(),
                     {.seed = world.rank() == 0 ? 11u : 99u, .dtype = options.dtype});
    optim::AdamW optimizer(model.Parameters(), TinyAdamW());
    Plugin plugin(world.group(), training, plugin_options...);
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    if (setup.evaluate_first) {
      const autograd::NoGradGuard no_grad;
      TinyLoss(model, world.context(), options, 3, 0, 2);
    }
    for (int64_t step = 0; step < options.steps; ++step) {
      Step(booster, optimizer, model, world, options, setup, step);
    }
    results[static_cast<size_t>(world.rank())] = WeightsAfter(model, plugin);
  });
  testing::ShareByRank(results);
  for (const Weights& other : results) EXPECT_EQ(other, results[0]) << "ranks differ";
  return results[0];
}

Weights GeminiRun(const TinyRunOptions& options, const RunSetup& setup) {
  return RunWith<GeminiPlugin>(options, setup,
                               TrainingOptions{.precision = setup.precision,
                                               .max_norm = options.max_norm,
                                               .bucket_bytes = setup.chunk_bytes});
}

TEST(GeminiTest, EqualsOneRankInF64) {
  for (const TinyKind kind : {TinyKind::kGpt2, TinyKind::kLlama}) {
    for (const double max_norm : {0.0, 0.3}) {
      const TinyRunOptions options{.kind = kind, .steps = 10, .max_norm = max_norm};
      Weights start;
      const Weights want = PlainRun(options, &start);
      for (const int num_ranks : {1, 2, 3, 4}) {
        for (const int64_t accumulate : {1, 3}) {
          const RunSetup setup{.num_ranks = num_ranks,
                               .accumulate = accumulate,
                               .no_sync = num_ranks % 2 == 0,
                               .chunk_bytes = num_ranks == 3 ? 1 : 1000,
                               .evaluate_first = accumulate == 1};
          const Weights got = GeminiRun(options, setup);
          const auto worst = WorstUpdateError(start, want, got);
          EXPECT_LE(worst.error, 1e-9) << worst.name << ", " << num_ranks << " ranks, accumulate "
                                       << accumulate << ", max_norm " << max_norm;
          EXPECT_EQ(got.at("unused"), start.at("unused"));
          EXPECT_EQ(got.at("frozen"), start.at("frozen"));
        }
      }
    }
  }
}

// Sums over ranks are the same sums, wherever the chunks are cut.
TEST(GeminiTest, HasTheBitsOfStageTwo) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kFp16}) {
    for (const int num_ranks : {1, 2, 3, 4}) {
      for (const int64_t accumulate : {1, 3}) {
        const TinyRunOptions options{.kind = num_ranks == 2 ? TinyKind::kLlama : TinyKind::kGpt2,
                                     .dtype = DType::kF32,
                                     .steps = 6,
                                     .dropout = num_ranks == 3 ? 0.1 : 0};
        const RunSetup setup{.precision = precision,
                             .num_ranks = num_ranks,
                             .accumulate = accumulate,
                             .no_sync = num_ranks == 4};
        const Weights want = RunWith<LowLevelZeroPlugin>(
            options, setup, TrainingOptions{.precision = precision, .bucket_bytes = 3000});
        EXPECT_EQ(GeminiRun(options, setup), want)
            << Name(precision) << ", " << num_ranks << " ranks, accumulate " << accumulate;
      }
    }
  }
}

// The second forward of a checkpointed block gathers again.
TEST(GeminiTest, RecomputedBlocksHaveTheSameBits) {
  std::map<bool, Weights> results;
  for (const bool recompute : {false, true}) {
    RunRanks(2, [&](comm::World& world) {
      nn::Gpt2 model({.vocab_size = 19,
                      .n_positions = 8,
                      .n_embd = 16,
                      .n_layer = 3,
                      .n_head = 4,
                      .dropout = 0.1,
                      .recompute = recompute});
      model.Initialize(world.context(), {.seed = 3});
      optim::AdamW optimizer(model.Parameters(), TinyAdamW());
      GeminiPlugin plugin(world.group());
      Booster booster(plugin);
      std::ignore = booster.boost(model, optimizer);
      const Tensor tokens = Tensor::Full({2, 8}, DType::kI64, 5 + world.rank(), world.context());
      for (int step = 0; step < 3; ++step) {
        booster.backward(nn::CrossEntropyLoss()(model(tokens), tokens), optimizer);
        optimizer.step();
        optimizer.zero_grad();
      }
      const Weights got = WholeWeightsOf(model, plugin);
      if (world.rank() == 0) results[recompute] = got;
    });
    testing::ShareFromFirst(results[recompute]);
  }
  EXPECT_EQ(results[true], results[false]);
}

}  // namespace gemini_test
}  // namespace apogee
