// SPDX-License-Identifier: Apache-2.0

// A model whose values are made lazily is never whole on a rank that shards it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <tuple>

#include "apogee/booster/booster.h"
#include "apogee/core/process_memory.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/gemini/chunk_homes.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace lazy_memory_test {

using testing::RunRanks;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// What the operating system gave this process from the model's construction to the end of boost.
int64_t ProcessPeakOfBoost(Precision precision, bool lazy) {
  const int64_t before = ReadProcessMemory()->own_bytes();
  std::atomic<int64_t> peak = 0;
  RunRanks(4, [&](comm::World& world) {
    nn::Mlp model({.sizes = std::vector<int64_t>(17, 1024)});
    if (lazy) {
      model.InitializeLazily(world.context(), {.seed = 1});
    } else {
      model.Initialize(world.context(), {.seed = 1});
    }
    optim::Sgd optimizer(model.Parameters(), {.lr = 1e-3});
    GeminiPlugin plugin(world.group(), {.precision = precision});
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    peak = ReadProcessMemory()->peak_own_bytes() - before;
  });
  return peak;
}

// First, for a process's peak never falls. The ranks are threads of it: their shards are the model.
TEST(LazyMemoryTest, TheProcessNeedsShardsOnly) {
  if (kSanitized || !ReadProcessMemory().ok()) GTEST_SKIP();
  constexpr int64_t kLayer = 1024 * 1025, kModel = 16 * kLayer;
  constexpr int64_t kRest = 12 << 20;  // stacks, heaps, code's data
  EXPECT_LE(ProcessPeakOfBoost(Precision::kF32, true), kModel * 4 + 4 * kLayer * 4 + kRest);
  EXPECT_LE(ProcessPeakOfBoost(Precision::kBf16, true), kModel * (2 + 4) + 4 * kLayer * 4 + kRest);
  EXPECT_GE(ProcessPeakOfBoost(Precision::kF32, false), 4 * kModel * 4);
}

nn::Gpt2Config Config() {
  return {.vocab_size = 128, .n_positions = 16, .n_embd = 64, .n_layer = 4, .n_head = 4};
}

int64_t LargestBytes(const nn::Module& model, DType dtype) {
  int64_t largest = 0;
  for (const auto& p : model.Parameters()) largest = std::max(largest, p->shape().numel());
  return largest * DTypeSize(dtype);
}

Tensor Loss(nn::Module& model, const ContextPtr& context) {
  const Tensor tokens = Tensor::Full({2, 16}, DType::kI64, 3, context);
  return nn::CrossEntropyLoss()(model(tokens), tokens);
}

struct Case {
  Precision precision;
  DType dtype;
  int64_t shard_bytes;  // per element
  int64_t master_bytes;
  int64_t need_bytes;  // values, gradients, masters and AdamW's states
};

const std::vector<Case>& Cases() {
  static const auto& cases = *new std::vector<Case>{{Precision::kF32, DType::kF32, 4, 0, 16},
                                                    {Precision::kBf16, DType::kF32, 2, 4, 18},
                                                    {Precision::kBf16, DType::kBF16, 2, 0, 18},
                                                    {Precision::kF64, DType::kF64, 8, 0, 32}};
  return cases;
}

TEST(LazyMemoryTest, BoostNeedsShardsAndTheLargestParameter) {
  for (const Case& c : Cases()) {
    for (const int num_ranks : {1, 2, 3, 4}) {
      for (const bool first_rank_whole : {false, true}) {
        RunRanks(num_ranks, [&](comm::World& world) {
          const MemoryLedger& ledger = world.context()->ledger();
          nn::Gpt2 model(Config());
          const bool whole = first_rank_whole && world.rank() == 0;
          if (whole) {
            model.Initialize(world.context(), {.seed = 1, .dtype = c.dtype});
          } else {
            model.InitializeLazily(world.context(), {.seed = 2, .dtype = c.dtype});
            EXPECT_EQ(ledger.peak_total_bytes(), 0);
          }
          optim::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
          GeminiPlugin plugin(world.group(), {.precision = c.precision, .bucket_bytes = 50000});
          Booster booster(plugin);
          std::ignore = booster.boost(model, optimizer);
          const int64_t rest = ledger.model_data_bytes(), peak = ledger.peak_model_data_bytes();
          // Chunks are padded.
          EXPECT_NEAR(
              static_cast<double>(rest * num_ranks),
              static_cast<double>(model.num_parameters() * (c.shard_bytes + c.master_bytes)),
              0.05 * static_cast<double>(rest * num_ranks));
          if (whole) {
            EXPECT_GT(peak, model.num_parameters() * DTypeSize(c.dtype));
          } else {
            EXPECT_LE(peak, rest + LargestBytes(model, c.dtype));
          }
        });
        ASSERT_FALSE(HasFailure()) << Name(c.precision) << ", " << num_ranks << " ranks";
      }
    }
  }
}

// The allocator does not collect blocks of as many sizes as there are values.
TEST(LazyMemoryTest, BlocksOfValuesAreGivenBack) {
  RunRanks(4, [](comm::World& world) {
    std::vector<int64_t> sizes;
    for (int64_t width = 128; width <= 1024; width += 64) sizes.push_back(width);
    nn::Mlp model({.sizes = sizes});
    model.InitializeLazily(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
    GeminiPlugin plugin(world.group());
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const MemoryLedger& ledger = world.context()->ledger();
    // Blocks are rounded up by at most an eighth.
    const auto needed =
        static_cast<double>(ledger.model_data_bytes() + LargestBytes(model, DType::kF32));
    EXPECT_LE(static_cast<double>(ledger.peak_reserved_bytes()), 1.15 * needed);
    EXPECT_LE(static_cast<double>(ledger.live_total_bytes() + ledger.slack_bytes()),
              1.15 * static_cast<double>(ledger.model_data_bytes()));
  });
}

// A quarter of what one rank would need is enough from the beginning.
TEST(LazyMemoryTest, AutoKeepsToTheBudgetFromTheFirstByte) {
  for (const Case& c : Cases()) {
    for (const int num_ranks : {1, 2, 3, 4}) {
      RunRanks(num_ranks, [&](comm::World& world) {
        const MemoryLedger& device = world.context()->ledger();
        nn::Gpt2 model(Config());
        const int64_t budget = model.num_parameters() * c.need_bytes / 4;
        model.InitializeLazily(world.context(), {.seed = 1, .dtype = c.dtype});
        optim::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
        GeminiPlugin plugin(world.group(), {.precision = c.precision, .bucket_bytes = 50000},
                            {.placement = {.placement_policy = PlacementPolicy::kAuto,
                                           .device_budget_bytes = budget}});
        Booster booster(plugin);
        std::ignore = booster.boost(model, optimizer);
        const MemoryLedger& host = plugin.homes().host()->ledger();
        EXPECT_LE(device.peak_model_data_bytes(), LargestBytes(model, c.dtype));
        EXPECT_EQ(host.peak_model_data_bytes(), host.model_data_bytes());
        EXPECT_NEAR(static_cast<double>(host.model_data_bytes() * num_ranks),
                    static_cast<double>(model.num_parameters() * (c.shard_bytes + c.master_bytes)),
                    0.05 * static_cast<double>(host.model_data_bytes() * num_ranks));
        for (int step = 0; step < 2; ++step) {
          booster.backward(Loss(model, world.context()), optimizer);
          optimizer.step();
          optimizer.zero_grad();
        }
        EXPECT_LE(device.peak_model_data_bytes(), budget);
      });
      ASSERT_FALSE(HasFailure()) << Name(c.precision) << ", " << num_ranks << " ranks";
    }
  }
}

}  // namespace lazy_memory_test
}  // namespace apogee
