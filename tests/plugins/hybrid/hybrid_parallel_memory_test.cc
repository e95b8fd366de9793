// SPDX-License-Identifier: Apache-2.0

// Bytes held and communicated under HybridParallelPlugin are those of the formulas in its header.
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace hybrid_parallel_memory_test {

using comm::CollectiveKind;
using testing::RunRanks;

constexpr int64_t kDim = 64, kLayers = 3, kTokens = 16, kVocab = 256, kHeads = 4, kBatch = 4;

nn::Gpt2Config Config() {
  return {.vocab_size = kVocab,
          .n_positions = kTokens,
          .n_embd = kDim,
          .n_layer = kLayers,
          .n_head = kHeads};
}

// Elements of one tp rank: tables and products are cut, norms, positions and row biases are not.
double LocalElements(double tp) {
  const double d = kDim;
  const double cut = kVocab * d + kLayers * (12 * d * d + 7 * d);
  const double whole = kTokens * d + kLayers * (2 * d + 4 * d) + 2 * d;
  return cut / tp + whole;
}

struct Rig {
  Rig(comm::World& world, const TrainingOptions& training, const HybridParallelOptions& options)
      : context(world.context()),
        model(Config()),
        optimizer((model.Initialize(context, {.seed = 1}), model.Parameters()), {}),
        plugin(world, training, options),
        booster(plugin),
        boosted(booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()})) {}
  Tensor Loss() {
    const int64_t count = kBatch / plugin.data_size();
    const Tensor tokens = Tensor::Full({count, kTokens}, DType::kI64, 3, context);
    return boosted.criterion(boosted.model(tokens), tokens);
  }

  ContextPtr context;
  nn::Gpt2 model;
  optim::AdamW optimizer;
  HybridParallelPlugin plugin;
  Booster booster;
  Boosted boosted;
};

TEST(HybridParallelMemoryTest, ParametersGradientsAndStatesFallAsTheFormulas) {
  for (const int tp : {1, 2, 4}) {
    for (const int dp : {1, 2}) {
      for (const int zero : {0, 1, 2}) {
        RunRanks(tp * dp, [&](comm::World& world) {
          Rig rig(world, {.bucket_bytes = 20000}, {.tp_size = tp, .stage = zero});
          rig.booster.backward(rig.Loss(), rig.optimizer);
          const MemoryLedger& ledger = rig.context->ledger();
          const auto share = [&](MemoryCategory category, double want) {
            return static_cast<double>(ledger.live_bytes(category)) / want;
          };
          const double elements = LocalElements(tp);
          EXPECT_NEAR(share(MemoryCategory::kGradient, 4 * elements / (zero == 2 ? dp : 1)), 1,
                      0.05);
          rig.optimizer.step();
          rig.optimizer.zero_grad();
          rig.model.Parameters()[0]->value();  // waits
          EXPECT_NEAR(share(MemoryCategory::kParameter, 4 * elements), 1, 0.05);
          EXPECT_NEAR(share(MemoryCategory::kOptimizerState, 8 * elements / (zero > 0 ? dp : 1)), 1,
                      0.05);
        });
        ASSERT_FALSE(HasFailure()) << "tp " << tp << ", dp " << dp << ", zero " << zero;
      }
    }
  }
}

// What forward keeps for backward: of each token of a layer 12 d numbers of cut activations (q, k,
// v, the attention's output, the 4 d before and after GELU), a log-sum-exp per head, and the logits
// fall with tp; the residual stream and what the norms keep do not.
TEST(HybridParallelMemoryTest, CutActivationsFallWithTp) {
  std::map<int, double> kept;
  for (const int tp : {1, 2, 4}) {
    RunRanks(tp, [&](comm::World& world) {
      Rig rig(world, {}, {.tp_size = tp});
      const MemoryLedger& ledger = rig.context->ledger();
      const int64_t before = ledger.live_bytes(MemoryCategory::kActivation);
      const Tensor loss = rig.Loss();
      if (world.rank() == 0) {
        kept[tp] = static_cast<double>(ledger.live_bytes(MemoryCategory::kActivation) - before);
      }
    });
  }
  const double rows = kBatch * kTokens;
  const double cut = 4 * rows * (kLayers * (12 * kDim + kHeads) + kVocab);
  EXPECT_NEAR((kept[1] - kept[2]) / (cut / 2), 1, 0.05);
  EXPECT_NEAR((kept[1] - kept[4]) / (cut * 3 / 4), 1, 0.05);
}

TEST(HybridParallelMemoryTest, BytesPerStepAreTheFormulas) {
  for (const int tp : {2, 4}) {
    for (const int zero : {0, 1, 2}) {
      RunRanks(2 * tp, [&](comm::World& world) {
        Rig rig(world, {.bucket_bytes = 20000}, {.tp_size = tp, .stage = zero});
        const comm::GroupPtr tp_group = rig.plugin.mesh().group(comm::Axis::kTp);
        const comm::GroupPtr dp_group = rig.plugin.mesh().group(comm::Axis::kDp);
        const comm::Traffic tp_before = tp_group->traffic(), dp_before = dp_group->traffic();
        rig.booster.backward(rig.Loss(), rig.optimizer);
        const comm::Traffic layers = tp_group->traffic() - tp_before;
        // Forward: the table and two row-parallel layers per block; backward: the head and two
        // column-parallel ones. The loss: a maximum and two sums per token.
        const int64_t rows = kBatch / 2 * kTokens, passes = 2 * (1 + 2 * kLayers);
        EXPECT_EQ(layers.calls(CollectiveKind::kAllReduce), passes + 2);
        EXPECT_EQ(layers.bytes(CollectiveKind::kAllReduce), 4 * rows * (passes * kDim + 3));
        EXPECT_EQ(layers.total_bytes(), layers.bytes(CollectiveKind::kAllReduce));

        rig.optimizer.step();
        rig.model.Parameters()[0]->value();  // waits
        const comm::Traffic data = dp_group->traffic() - dp_before;
        const double local = 4 * LocalElements(tp);
        const auto near = [&](CollectiveKind kind, double want) {
          EXPECT_NEAR(static_cast<double>(data.bytes(kind)), want, 0.02 * local)
              << comm::CollectiveName(kind);
        };
        near(CollectiveKind::kAllReduce, zero == 0 ? local : 0);
        near(CollectiveKind::kReduceScatter, zero == 0 ? 0 : local);
        near(CollectiveKind::kAllGather, zero == 0 ? 0 : local);
      });
      ASSERT_FALSE(HasFailure()) << "tp " << tp << ", zero " << zero;
    }
  }
}

// q, k and v share their input, and so do gate and up: one all-reduce each in backward. bf16 sums
// travel in f32.
TEST(HybridParallelMemoryTest, LlamaCommunicatesAsMuchAsGpt2) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    RunRanks(2, [&](comm::World& world) {
      nn::Llama model({.vocab_size = kVocab,
                       .hidden_size = kDim,
                       .intermediate_size = 2 * kDim,
                       .num_hidden_layers = kLayers,
                       .num_attention_heads = kHeads,
                       .num_key_value_heads = 2,
                       .max_position_embeddings = kTokens});
      model.Initialize(world.context(), {.seed = 1});
      optim::AdamW optimizer(model.Parameters(), {});
      HybridParallelPlugin plugin(world, {.precision = precision}, {.tp_size = 2});
      Booster booster(plugin);
      Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
      const comm::GroupPtr group = plugin.mesh().group(comm::Axis::kTp);
      const comm::Traffic before = group->traffic();
      const Tensor tokens = Tensor::Full({kBatch, kTokens}, DType::kI64, 3, world.context());
      booster.backward(boosted.criterion(boosted.model(tokens), tokens), optimizer);
      const comm::Traffic layers = group->traffic() - before;
      const int64_t rows = kBatch * kTokens, passes = 2 * (1 + 2 * kLayers);
      EXPECT_EQ(layers.calls(CollectiveKind::kAllReduce), passes + 2);
      // The table's rows are summed as they are: all but one of them are zero.
      const int64_t table = (precision == Precision::kBf16 ? 2 : 4) * rows * kDim;
      EXPECT_EQ(layers.bytes(CollectiveKind::kAllReduce),
                table + 4 * rows * ((passes - 1) * kDim + 3));
    });
  }
}

}  // namespace hybrid_parallel_memory_test
}  // namespace apogee
