// SPDX-License-Identifier: Apache-2.0

// Bytes and collectives of ZeRO are those of the formulas in plugins/low_level_zero.h.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace low_level_zero_memory_test {

using testing::RunRanks;

nn::Gpt2Config Config(int64_t layers) {
  return {.vocab_size = 256,
          .n_positions = 16,
          .n_embd = 64,
          .n_layer = layers,
          .n_head = 4,
          .dropout = 0};
}

Tensor Loss(nn::Module& model, const ContextPtr& context) {
  const Tensor tokens = Tensor::Full({2, 16}, DType::kI64, 3, context);
  return nn::CrossEntropyLoss()(model(tokens), tokens);
}

double Share(int64_t got, double want) { return static_cast<double>(got) / want; }

struct Formula {
  std::string name;
  optim::OptionMap options;
  double per_element;     // bytes of states, sharded
  double per_factor = 0;  // bytes per row and column, on every rank
};

const Formula kFormulas[] = {
    {"adamw", {}, 8},
    {"sgd", {{"momentum", "0.9"}}, 4},
    {"lion", {}, 4},
    {"lamb", {}, 8},
    {"scaled_adam", {}, 8},
    {"came", {}, 4, 8},
    {"adafactor", {{"beta1", "0.9"}}, 4, 4},
    {"adamw8bit", {{"min_8bit_size", "0"}}, 2},
};

struct Sizes {
  double elements = 0, factors = 0, vectors = 0;
};
Sizes SizesOf(const nn::Module& model) {
  Sizes sizes;
  for (const auto& p : model.Parameters()) {
    sizes.elements += static_cast<double>(p->shape().numel());
    if (p->shape().rank() == 2) {
      sizes.factors += static_cast<double>(p->shape()[0] + p->shape()[1]);
    } else {
      sizes.vectors += static_cast<double>(p->shape().numel());
    }
  }
  return sizes;
}

// After a whole step, and at the end of backward.
TEST(LowLevelZeroMemoryTest, BytesAreTheFormulas) {
  for (const Formula& formula : kFormulas) {
    for (const int num_ranks : {1, 2, 3, 4}) {
      for (const int stage : {0, 1, 2}) {  // 0: ddp
        for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
          for (const bool masters : {true, false}) {
            if (!masters && (precision == Precision::kF32 || stage == 0)) continue;
            RunRanks(num_ranks, [&](comm::World& world) {
              nn::Gpt2 model(Config(2));
              model.Initialize(world.context(), {.seed = 1});
              const Sizes sizes = SizesOf(model);
              auto optimizer =
                  optim::MakeOptimizer(formula.name, model.Parameters(), formula.options);
              ASSERT_TRUE(optimizer.ok()) << optimizer.status();
              // Cuts at whole blocks of 256 need chunks of many.
              const int64_t bucket = formula.name == "adamw8bit" ? 400000 : 20000;
              std::unique_ptr<Plugin> plugin;
              if (stage == 0) {
                plugin = std::make_unique<DdpPlugin>(
                    world.group(), TrainingOptions{.precision = precision, .bucket_bytes = bucket});
              } else {
                plugin = std::make_unique<LowLevelZeroPlugin>(
                    world.group(), TrainingOptions{.precision = precision, .bucket_bytes = bucket},
                    LowLevelZeroOptions{.stage = stage, .master_weights = masters});
              }
              Booster booster(*plugin);
              std::ignore = booster.boost(model, **optimizer);
              booster.backward(Loss(model, world.context()), **optimizer);
              const MemoryLedger& ledger = world.context()->ledger();
              const double n = stage == 0 ? 1 : num_ranks;
              const double elements = sizes.elements;
              const int64_t gradients = ledger.live_bytes(MemoryCategory::kGradient);
              EXPECT_NEAR(Share(gradients, 4 * elements / (stage == 2 ? n : 1)), 1, 0.05)
                  << "gradients";
              (*optimizer)->step();
              (*optimizer)->zero_grad();
              model.Parameters()[0]->value();  // waits
              EXPECT_EQ(ledger.live_bytes(MemoryCategory::kGradient), 0);
              EXPECT_NEAR(Share(ledger.live_bytes(MemoryCategory::kParameter),
                                elements * (precision == Precision::kF32 ? 4 : 2)),
                          1, 0.05)
                  << "parameters";
              double states =
                  formula.per_element * elements / n + formula.per_factor * sizes.factors;
              if (formula.per_factor > 0) {  // vectors are not factored
                states += formula.per_factor * sizes.vectors / n;
              }
              if (formula.name == "adamw8bit") states += 8.0 / 256 * elements;
              if (precision == Precision::kBf16 && masters) states += 4 * elements / n;
              EXPECT_NEAR(Share(ledger.live_bytes(MemoryCategory::kOptimizerState), states), 1,
                          0.05)
                  << "states";
            });
            if (::testing::Test::HasFailure()) {
              FAIL() << formula.name << ", " << num_ranks << " ranks, stage " << stage << ", "
                     << Name(precision) << ", masters " << masters;
            }
          }
        }
      }
    }
  }
}

// Gradients that exist at a time in stage 2: the shard, the chunks under way, and the one parameter
// whose gradient is on its way into a chunk.
TEST(LowLevelZeroMemoryTest, StageTwoKeepsFewChunksOpen) {
  RunRanks(4, [](comm::World& world) {
    nn::Gpt2 model(Config(8));
    model.Initialize(world.context(), {.seed = 1});
    const double elements = SizesOf(model).elements;
    auto optimizer = optim::MakeOptimizer("adamw", model.Parameters());
    constexpr int64_t kBucket = 60000;
    LowLevelZeroPlugin plugin(world.group(), {.bucket_bytes = kBucket});
    Booster booster(plugin);
    world.context()->ledger().ResetPeaks();
    std::ignore = booster.boost(model, **optimizer);
    EXPECT_LE(world.context()->ledger().peak_bytes(MemoryCategory::kParameter),
              1.05 * 4 * elements + 1.5 * kBucket)
        << "the model twice";
    for (int step = 0; step < 2; ++step) {
      world.context()->ledger().ResetPeaks();
      booster.backward(Loss(model, world.context()), **optimizer);
      const auto peak =
          static_cast<double>(world.context()->ledger().peak_bytes(MemoryCategory::kGradient));
      const double largest = 64 * 256 * 4;
      EXPECT_LE(peak, 4 * elements / 4 + 4 * 1.3 * kBucket + 2 * largest);
      EXPECT_LT(peak, 0.6 * 4 * elements) << "all gradients at once";
      (*optimizer)->step();
      (*optimizer)->zero_grad();
    }
  });
}

// Per step: gradients ceil(bytes / bucket) reduce-scatters and one all-reduce of presence bits,
// parameters as many all-gathers; statistics one all-reduce per phase, however many layers there
// are.
TEST(LowLevelZeroMemoryTest, CollectivesDoNotGrowWithTheLayers) {
  using Kind = comm::CollectiveKind;
  const std::map<std::string, int64_t> phases = {{"adamw", 0}, {"lamb", 1},        {"adafactor", 2},
                                                 {"came", 3},  {"scaled_adam", 1}, {"lars", 1}};
  for (const auto& [name, num_phases] : phases) {
    std::vector<int64_t> statistics;
    for (const int64_t layers : {2, 24}) {
      RunRanks(2, [&, &name = name](comm::World& world) {
        nn::Gpt2 model(Config(layers));
        model.Initialize(world.context(), {.seed = 1});
        const auto bytes = static_cast<int64_t>(4 * SizesOf(model).elements);
        auto optimizer = optim::MakeOptimizer(name, model.Parameters());
        LowLevelZeroPlugin plugin(world.group(), {.max_norm = 1, .bucket_bytes = 1 << 20});
        Booster booster(plugin);
        std::ignore = booster.boost(model, **optimizer);
        comm::Traffic before;
        for (int step = 0; step < 2; ++step) {
          before = world.group()->traffic();
          booster.backward(Loss(model, world.context()), **optimizer);
          (*optimizer)->step();
          (*optimizer)->zero_grad();
        }
        const comm::Traffic traffic = world.group()->traffic() - before;
        const int64_t chunks = (bytes + (1 << 20) - 1) >> 20;
        EXPECT_EQ(traffic.calls(Kind::kReduceScatter), chunks) << name;
        // And what the loss was made of.
        EXPECT_EQ(traffic.calls(Kind::kAllGather), chunks + 1) << name;
        EXPECT_NEAR(Share(traffic.bytes(Kind::kReduceScatter), static_cast<double>(bytes)), 1,
                    0.01);
        EXPECT_NEAR(Share(traffic.bytes(Kind::kAllGather), static_cast<double>(bytes)), 1, 0.01);
        if (world.rank() == 0) statistics.push_back(traffic.calls(Kind::kAllReduce));
      });
    }
    EXPECT_EQ(statistics[0], statistics[1]) << name;
    EXPECT_EQ(statistics[0], 2 + num_phases) << name << ": presence, decision, phases";
  }
}

}  // namespace low_level_zero_memory_test
}  // namespace apogee
