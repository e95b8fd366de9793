// SPDX-License-Identifier: Apache-2.0

// Packed documents under every axis compute what one rank computes, whole training runs in f64.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace packed_documents_test {

using nn::parallel::SequenceMode;
using pipeline::ScheduleKind;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

constexpr int64_t kBatch = 4, kTokens = 16, kVocab = 19, kSteps = 2;

std::unique_ptr<nn::Module> MakeModel(bool llama, bool recompute) {
  if (llama) {
    return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kVocab,
                                                       .hidden_size = 16,
                                                       .intermediate_size = 12,
                                                       .num_hidden_layers = 4,
                                                       .num_attention_heads = 4,
                                                       .num_key_value_heads = 2,
                                                       .max_position_embeddings = kTokens,
                                                       .recompute = recompute});
  }
  return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                   .n_positions = kTokens,
                                                   .n_embd = 16,
                                                   .n_layer = 4,
                                                   .n_head = 4,
                                                   .dropout = 0.1,
                                                   .recompute = recompute});
}

data::Batch BatchOf(int64_t step, int64_t first, int64_t count, const ContextPtr& context) {
  std::vector<int64_t> inputs, targets, starts;
  for (int64_t sample = first; sample < first + count; ++sample) {
    for (int64_t t = 0, begin = 0; t < kTokens; ++t) {
      const auto word = [&](int64_t of) {
        const auto place = static_cast<uint64_t>((step * kBatch + sample) * 64 + of);
        return static_cast<int64_t>(Philox(MakeKey(5, "tokens"), place)[0] % 1000);
      };
      if (word(t + 32) % 4 == 0) begin = t;
      inputs.push_back(word(t) % kVocab);
      targets.push_back(word(t + 1) % kVocab);
      starts.push_back(begin);
    }
  }
  const auto tensor = [&](const std::vector<int64_t>& values) {
    return Tensor::FromVector<int64_t>(values, {count, kTokens}, context);
  };
  return {tensor(inputs), tensor(targets), {{"starts", tensor(starts)}}};
}

// A key's bias has gradient zero: what remains is rounding, which the optimizer blows up.
std::unique_ptr<nn::Module> Initialized(bool llama, bool recompute, const ContextPtr& context) {
  std::unique_ptr<nn::Module> model = MakeModel(llama, recompute);
  model->SetInit("*.weight", nn::Init::Normal(0, 0.3));
  model->Initialize(context, {.seed = 11, .dtype = DType::kF64});
  for (const auto& p : model->Parameters()) {
    if (p->name().ends_with("c_attn.bias")) p->set_requires_grad(false);
  }
  return model;
}

// The loss of every step and the last weights.
struct TrainedRun {
  std::vector<double> losses;
  Weights start, end;
};

void Train(nn::Module& model, Plugin& plugin, const ContextPtr& context, TrainedRun& run) {
  const auto optimizer =
      ValueOrThrow(optim::MakeOptimizer("adamw", model.Parameters(), {{"lr", "0.01"}}));
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
  const int64_t count = kBatch / plugin.data_size();
  for (int64_t step = 0; step < kSteps; ++step) {
    const data::Batch batch = BatchOf(step, plugin.data_rank() * count, count, context);
    run.losses.push_back(
        booster.execute_pipeline(batch, boosted.model, boosted.criterion, &boosted.optimizer)
            .loss.Item());
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
  for (const auto& p : model.Parameters()) {
    run.end[p->name()] = plugin.WholeValue(*p).ToVector<double>();
  }
}

TrainedRun PlainRun(bool llama) {
  TrainedRun run;
  const ContextPtr context = CpuContext();
  const auto model = Initialized(llama, false, context);
  run.start = WeightsOf(*model);
  SingleRankPlugin plugin({.precision = Precision::kF64});
  Train(*model, plugin, context, run);
  return run;
}

void ExpectEqualRuns(const TrainedRun& want, bool llama, bool recompute, int num_ranks,
                     const HybridParallelOptions& options) {
  if (testing::TooManyRanks(num_ranks)) return;
  std::vector<TrainedRun> runs(static_cast<size_t>(num_ranks));
  RunRanks(num_ranks, [&](comm::World& world) {
    const auto model = Initialized(llama, recompute, world.context());
    HybridParallelPlugin plugin(world, {.precision = Precision::kF64}, options);
    TrainedRun& run = runs[static_cast<size_t>(world.rank())];
    Train(*model, plugin, world.context(), run);
    if (plugin.data_size() == 1) {
      for (size_t i = 0; i < kSteps; ++i) EXPECT_NEAR(run.losses[i], want.losses[i], 1e-10);
    }
    const auto worst = WorstUpdateError(want.start, want.end, run.end);
    EXPECT_LE(worst.error, 1e-9) << worst.name << ", llama " << llama << ", recompute " << recompute
                                 << ", " << num_ranks << " ranks, tp " << options.tp_size << ", pp "
                                 << options.pp_size << " " << Name(options.schedule) << ", sp "
                                 << options.sp_size << " " << Name(options.sp_mode) << ", zero "
                                 << options.stage;
  });
}

TEST(PackedDocumentsTest, EveryAxisEqualsOneRank) {
  using enum SequenceMode;
  using enum ScheduleKind;
  struct Setup {
    int ranks;
    HybridParallelOptions options;
  };
  const std::vector<Setup> setups = {
      {2, {}},
      {2, {.stage = 3}},
      {2, {.tp_size = 2}},
      {2, {.tp_size = 2, .sp_mode = kSplitGather}},
      {2, {.sp_size = 2, .sp_mode = kAllToAll}},
      {2, {.sp_size = 2, .sp_mode = kRingAttention, .stage = 1}},
      {4, {.sp_size = 4, .sp_mode = kRingAttention}},
      {3, {.pp_size = 3, .num_microbatches = 4}},
      {2, {.pp_size = 2, .schedule = kInterleaved, .num_microbatches = 4}},
      {2, {.pp_size = 2, .schedule = kZbv, .num_microbatches = 4}},
      {4, {.pp_size = 2, .sp_size = 2, .sp_mode = kRingAttention, .num_microbatches = 2}},
      {4,
       {.tp_size = 2,
        .pp_size = 2,
        .sp_mode = kSplitGather,
        .schedule = kZbv,
        .num_microbatches = 4}},
  };
  for (const bool llama : {false, true}) {
    const TrainedRun want = PlainRun(llama);
    for (size_t i = 0; i < setups.size(); ++i) {
      ExpectEqualRuns(want, llama, /*recompute=*/i % 2 == (llama ? 0 : 1), setups[i].ranks,
                      setups[i].options);
    }
  }
}

// Ranks that share a replica must get the same starts, as they must get the same tokens.
TEST(PackedDocumentsTest, StartsThatDiffer) {
  RunRanks(2, [](comm::World& world) {
    const auto model = Initialized(false, false, world.context());
    HybridParallelPlugin plugin(world, {.precision = Precision::kF64}, {.tp_size = 2});
    const auto optimizer =
        ValueOrThrow(optim::MakeOptimizer("adamw", model->Parameters(), {{"lr", "0.01"}}));
    Booster booster(plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    const data::Batch batch = BatchOf(0, 0, kBatch, world.context());
    if (world.rank() == 1) batch["starts"].Fill(0);
    booster.execute_pipeline(batch, boosted.model, boosted.criterion, &boosted.optimizer);
    EXPECT_THAT([&] { boosted.optimizer.step(); }, Says(HasSubstr("different inputs")));
  });
}

TEST(PackedDocumentsTest, Misuse) {
  RunRanks(2, [](comm::World& world) {
    const auto model = Initialized(false, false, world.context());
    HybridParallelPlugin plugin(world, {.precision = Precision::kF64},
                                {.pp_size = 2, .num_microbatches = 2});
    const auto optimizer =
        ValueOrThrow(optim::MakeOptimizer("adamw", model->Parameters(), {{"lr", "0.01"}}));
    Booster booster(plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    data::Batch batch = BatchOf(0, 0, kBatch, world.context());
    batch.more["starts"] = batch["starts"].Slice(0, 0, 2);
    EXPECT_THAT([&] { booster.execute_pipeline(batch, *model, boosted.criterion, nullptr); },
                Says(HasSubstr("inputs [4, 16] and starts [2, 16] differ")));
  });
}

}  // namespace packed_documents_test
}  // namespace apogee
