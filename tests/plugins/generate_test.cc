// SPDX-License-Identifier: Apache-2.0

// Booster::generate gives the tokens of one rank under every plugin, in f64, before and after a
// training step.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/matrix/models/families.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace generate_test {

using nn::parallel::SequenceMode;
using pipeline::ScheduleKind;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;
using Rows = std::vector<std::vector<int64_t>>;

constexpr int64_t kVocab = 19, kPositions = 16, kBatch = 4, kTokens = 8;
const Rows kPrompts = {{3, 5}, {1}, {2, 4, 6, 8, 10}};

// "gpt2", "llama", or "hf_" and a family of the matrix.
std::unique_ptr<nn::Module> MakeModel(const std::string& name) {
  if (name.starts_with("hf_")) return matrix::FamilyWorkload(name.substr(3)).MakeModel();
  if (name == "llama") {
    return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kVocab,
                                                       .hidden_size = 16,
                                                       .intermediate_size = 12,
                                                       .num_hidden_layers = 4,
                                                       .num_attention_heads = 4,
                                                       .num_key_value_heads = 2,
                                                       .max_position_embeddings = kPositions});
  }
  return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                   .n_positions = kPositions,
                                                   .n_embd = 16,
                                                   .n_layer = 4,
                                                   .n_head = 4,
                                                   .dropout = 0.1});
}

Tensor TokensOf(int64_t first, int64_t count, int64_t shift, const ContextPtr& context) {
  std::vector<int64_t> tokens;
  for (int64_t i = first * kTokens; i < (first + count) * kTokens; ++i) {
    tokens.push_back((i * i + 3 * i + shift) % kVocab);
  }
  return Tensor::FromVector<int64_t>(tokens, {count, kTokens}, context);
}

// Greedy, sampled, and beyond the model's positions.
std::vector<nn::GenerateOptions> Options() {
  return {{.max_new_tokens = 12, .stop_tokens = {7}, .max_tokens = kPositions},
          {.max_new_tokens = 12, .temperature = 1, .top_k = 9, .top_p = 0.9, .seed = 3},
          {.max_new_tokens = 20, .max_tokens = kPositions, .slide_window = true},
          {.max_new_tokens = 6, .temperature = 2, .use_cache = false}};
}

// Generated before and after a step.
std::vector<Rows> Generated(const std::string& name, Plugin& plugin, const ContextPtr& context,
                            const std::vector<nn::GenerateOptions>& options) {
  const auto model = MakeModel(name);
  model->SetInit("*.weight", nn::Init::Normal(0, 0.4));
  model->Initialize(context, {.seed = 11, .dtype = DType::kF64});
  const auto optimizer =
      ValueOrThrow(optim::MakeOptimizer("sgd", model->Parameters(), {{"lr", "0.1"}}));
  Booster booster(plugin);
  Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
  std::vector<Rows> texts;
  const auto generate = [&] {
    for (const nn::GenerateOptions& each : options) {
      texts.push_back(booster.generate(kPrompts, boosted.model, each));
      EXPECT_TRUE(boosted.model.is_training());
    }
  };
  generate();
  const int64_t count = kBatch / plugin.data_size(), first = plugin.data_rank() * count;
  const data::Batch batch{TokensOf(first, count, 0, context), TokensOf(first, count, 7, context)};
  booster.execute_pipeline(batch, boosted.model, boosted.criterion, &boosted.optimizer);
  boosted.optimizer.step();
  boosted.optimizer.zero_grad();
  generate();
  return texts;
}

using MakePlugin = std::function<std::unique_ptr<Plugin>(const comm::World& world)>;

void ExpectTokensOfOneRank(int num_ranks, const MakePlugin& make,
                           const std::vector<nn::GenerateOptions>& options,
                           const std::vector<std::string>& names = {"gpt2", "llama"}) {
  for (const std::string& name : names) {
    SingleRankPlugin single({.precision = Precision::kF64});
    const std::vector<Rows> want = Generated(name, single, CpuContext(), options);
    RunRanks(num_ranks, [&](comm::World& world) {
      const std::unique_ptr<Plugin> plugin = make(world);
      EXPECT_EQ(Generated(name, *plugin, world.context(), options), want)
          << plugin->name() << ", " << name << ", rank " << world.rank();
    });
  }
}

MakePlugin Hybrid(const HybridParallelOptions& options) {
  return [options](const comm::World& world) {
    return std::make_unique<HybridParallelPlugin>(
        world, TrainingOptions{.precision = Precision::kF64}, options);
  };
}

TEST(BoostedGenerateTest, TensorParallel) {
  ExpectTokensOfOneRank(2, Hybrid({.tp_size = 2}), Options());
}

TEST(BoostedGenerateTest, Pipelines) {
  ExpectTokensOfOneRank(2, Hybrid({.pp_size = 2, .num_microbatches = 2}), Options());
  ExpectTokensOfOneRank(
      2, Hybrid({.pp_size = 2, .schedule = ScheduleKind::kInterleaved, .num_microbatches = 2}),
      Options());
  ExpectTokensOfOneRank(
      2, Hybrid({.pp_size = 2, .schedule = ScheduleKind::kZbv, .microbatch_size = 1}), Options());
}

TEST(BoostedGenerateTest, TensorParallelPipeline) {
  ExpectTokensOfOneRank(4, Hybrid({.tp_size = 2, .pp_size = 2, .num_microbatches = 2}), Options());
}

TEST(BoostedGenerateTest, ShardedParameters) {
  ExpectTokensOfOneRank(2, Hybrid({.stage = 3}), Options());
  ExpectTokensOfOneRank(4, Hybrid({.tp_size = 2, .stage = 3}), Options());
  const TrainingOptions f64{.precision = Precision::kF64};
  ExpectTokensOfOneRank(
      2,
      [&](const comm::World& world) { return std::make_unique<GeminiPlugin>(world.group(), f64); },
      Options());
}

TEST(BoostedGenerateTest, DataParallel) {
  const TrainingOptions f64{.precision = Precision::kF64};
  ExpectTokensOfOneRank(
      2, [&](const comm::World& world) { return std::make_unique<DdpPlugin>(world.group(), f64); },
      Options());
  for (const int stage : {1, 2}) {
    ExpectTokensOfOneRank(
        2,
        [&](const comm::World& world) {
          return std::make_unique<LowLevelZeroPlugin>(world.group(), f64,
                                                      LowLevelZeroOptions{.stage = stage});
        },
        Options());
  }
}

// Windows, soft caps, learned positions, a fused qkv, norms of heads, a parallel residual.
TEST(BoostedGenerateTest, Families) {
  const std::vector<std::string> families = {"hf_mistral", "hf_gemma2",  "hf_gpt_neox",
                                             "hf_opt",     "hf_phi3",    "hf_olmo2",
                                             "hf_qwen3",   "hf_mixtral", "hf_qwen2_moe"};
  const std::vector<nn::GenerateOptions> options = {
      {.max_new_tokens = 11, .max_tokens = kPositions},
      {.max_new_tokens = 5, .temperature = 1, .top_k = 9, .top_p = 0.9, .seed = 3}};
  ExpectTokensOfOneRank(4, Hybrid({.tp_size = 2, .pp_size = 2, .num_microbatches = 2}), options,
                        families);
  ExpectTokensOfOneRank(2, Hybrid({.stage = 3}), options, {"hf_gemma2", "hf_opt"});
}

// Tokens that rows draw at unequal steps end them on every rank at once.
TEST(BoostedGenerateTest, StopTokens) {
  SingleRankPlugin single({.precision = Precision::kF64});
  const nn::GenerateOptions free{.max_new_tokens = 12};
  const Rows all = Generated("llama", single, CpuContext(), {free})[0];
  nn::GenerateOptions options = free;
  options.stop_tokens = {all[0][4], all[1][2], all[2][7]};
  const Rows stopped = Generated("llama", single, CpuContext(), {options})[0];
  for (size_t row = 0; row < all.size(); ++row) {
    const auto end = std::ranges::find_first_of(all[row], options.stop_tokens);
    EXPECT_EQ(stopped[row], std::vector<int64_t>(all[row].begin(), end + 1)) << "row " << row;
    EXPECT_LT(std::ssize(stopped[row]), 9) << "row " << row;
  }
  EXPECT_NE(stopped[0].size(), stopped[1].size());
  ExpectTokensOfOneRank(2, Hybrid({.tp_size = 2}), {options}, {"llama"});
  ExpectTokensOfOneRank(2, Hybrid({.pp_size = 2, .num_microbatches = 2}), {options}, {"llama"});
  ExpectTokensOfOneRank(4, Hybrid({.tp_size = 2, .pp_size = 2, .num_microbatches = 2}), {options},
                        {"llama"});
}

// Without a cache, with windows that the ranks divide.
TEST(BoostedGenerateTest, SequenceParallel) {
  const nn::GenerateOptions options{
      .max_new_tokens = 9, .max_tokens = kPositions, .use_cache = false, .window_multiple = 4};
  ExpectTokensOfOneRank(2, Hybrid({.sp_size = 2, .sp_mode = SequenceMode::kRingAttention}),
                        {options});
  ExpectTokensOfOneRank(2, Hybrid({.tp_size = 2, .sp_mode = SequenceMode::kSplitGather}),
                        {options});
}

TEST(BoostedGenerateTest, Refusals) {
  SingleRankPlugin plugin({.precision = Precision::kF64});
  const auto model = MakeModel("llama"), other = MakeModel("llama");
  for (const auto& each : {model.get(), other.get()}) each->Initialize(CpuContext());
  const auto optimizer =
      ValueOrThrow(optim::MakeOptimizer("sgd", model->Parameters(), {{"lr", "0.1"}}));
  Booster booster(plugin);
  EXPECT_THAT([&] { booster.generate(kPrompts, *model); }, Says(HasSubstr("boost")));
  static_cast<void>(booster.boost(*model, *optimizer));
  EXPECT_THAT([&] { booster.generate(kPrompts, *other); },
              Says(HasSubstr("generate: needs the model that boost returned")));
  EXPECT_THAT([&] { booster.generate({}, *model); }, Says(HasSubstr("there are no prompts")));
  if (testing::TooManyRanks(2)) return;
  RunRanks(2, [](comm::World& world) {
    const nn::GenerateOptions cached{.max_new_tokens = 2};
    const auto run = [&] {
      const auto ring = Hybrid({.sp_size = 2, .sp_mode = SequenceMode::kRingAttention})(world);
      Generated("llama", *ring, world.context(), {cached});
    };
    EXPECT_THAT(run, Says(HasSubstr("sequence parallelism gives each rank only a part")));
  });
}

}  // namespace generate_test
}  // namespace apogee
