// SPDX-License-Identifier: Apache-2.0

// Bytes of ZeRO stage 3 are those of the formulas in plugins/gemini.h.
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/gemini.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace gemini_memory_test {

using testing::RunRanks;

constexpr int64_t kVocab = 128, kPositions = 16, kDim = 64;

Tensor Loss(nn::Module& model, const ContextPtr& context) {
  const Tensor tokens = Tensor::Full({2, kPositions}, DType::kI64, 3, context);
  return nn::CrossEntropyLoss()(model(tokens), tokens);
}

double Share(int64_t got, double want) { return static_cast<double>(got) / want; }

// At rest everything is 1/n. The most that is gathered at a time: the position table, which the
// whole model reads, and the largest layer within it.
TEST(GeminiMemoryTest, BytesAreTheFormulas) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    for (const bool recompute : {false, true}) {
      for (const int num_ranks : {2, 3, 4}) {
        RunRanks(num_ranks, [&](comm::World& world) {
          nn::Gpt2 model({.vocab_size = kVocab,
                          .n_positions = kPositions,
                          .n_embd = kDim,
                          .n_layer = 3,
                          .n_head = 4,
                          .recompute = recompute});
          model.Initialize(world.context(), {.seed = 1});
          const auto elements = static_cast<double>(model.num_parameters());
          optim::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
          GeminiPlugin plugin(world.group(), {.precision = precision});
          Booster booster(plugin);
          const MemoryLedger& ledger = world.context()->ledger();
          world.context()->ledger().ResetPeaks();
          std::ignore = booster.boost(model, optimizer);
          const double bytes = precision == Precision::kF32 ? 4 : 2;
          const double rest = elements * bytes / num_ranks;
          const double largest = static_cast<double>(4 * kDim * kDim + 4 * kDim) * bytes;
          // Backward of the layer that runs the block again, which has another one as large.
          const double again = recompute ? static_cast<double>(4 * kDim * kDim + kDim) * bytes : 0;
          const double table = static_cast<double>(kPositions * kDim) * bytes;
          EXPECT_NEAR(Share(ledger.live_bytes(MemoryCategory::kParameter), rest), 1, 0.05);
          for (int step = 0; step < 2; ++step) {
            world.context()->ledger().ResetPeaks();
            booster.backward(Loss(model, world.context()), optimizer);
            EXPECT_NEAR(Share(ledger.peak_bytes(MemoryCategory::kParameter),
                              rest + table + largest + again),
                        1, 0.05);
            EXPECT_NEAR(Share(ledger.live_bytes(MemoryCategory::kParameter), rest), 1, 0.05);
            EXPECT_NEAR(
                Share(ledger.live_bytes(MemoryCategory::kGradient), elements * 4 / num_ranks), 1,
                0.05);
            optimizer.step();
            optimizer.zero_grad();
            EXPECT_EQ(ledger.live_bytes(MemoryCategory::kGradient), 0);
            const double states = elements * (precision == Precision::kF32 ? 8 : 12) / num_ranks;
            EXPECT_NEAR(Share(ledger.live_bytes(MemoryCategory::kOptimizerState), states), 1, 0.05);
          }
        });
        if (::testing::Test::HasFailure()) {
          FAIL() << Name(precision) << ", " << num_ranks << " ranks, recompute " << recompute;
        }
      }
    }
  }
}

// Chunks are reduced and freed while backward goes on.
TEST(GeminiMemoryTest, FewGradientsAreWholeAtATime) {
  RunRanks(4, [](comm::World& world) {
    nn::Gpt2 model({.vocab_size = kVocab,
                    .n_positions = kPositions,
                    .n_embd = kDim,
                    .n_layer = 8,
                    .n_head = 4});
    model.Initialize(world.context(), {.seed = 1});
    const auto bytes = static_cast<double>(4 * model.num_parameters());
    optim::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
    GeminiPlugin plugin(world.group());
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    for (int step = 0; step < 2; ++step) {
      world.context()->ledger().ResetPeaks();
      booster.backward(Loss(model, world.context()), optimizer);
      const int64_t peak = world.context()->ledger().peak_bytes(MemoryCategory::kGradient);
      EXPECT_LT(Share(peak, bytes), 0.6) << "all gradients at once";
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

// A graph that waits for its backward holds no values.
TEST(GeminiMemoryTest, GraphsHoldNoValues) {
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model({.vocab_size = kVocab,
                    .n_positions = kPositions,
                    .n_embd = kDim,
                    .n_layer = 1,
                    .n_head = 4});
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
    GeminiPlugin plugin(world.group());
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const MemoryLedger& ledger = world.context()->ledger();
    const int64_t rest = ledger.live_bytes(MemoryCategory::kParameter);
    const Tensor loss = Loss(model, world.context());
    EXPECT_EQ(ledger.live_bytes(MemoryCategory::kParameter), rest);
    booster.backward(loss, optimizer);
    EXPECT_EQ(ledger.live_bytes(MemoryCategory::kParameter), rest);
  });
}

}  // namespace gemini_memory_test
}  // namespace apogee
