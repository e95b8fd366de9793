// SPDX-License-Identifier: Apache-2.0

// A small model with experts, boosted by MoeHybridParallelPlugin.
//
//   ExpertRun run(world, {.ep_size = 2});
//   run.Boost();
//   run.Backward(run.Tokens(world));
//   run.boosted->optimizer.step();
#ifndef APOGEE_TESTS_PLUGINS_HYBRID_EXPERT_RUN_H_
#define APOGEE_TESTS_PLUGINS_HYBRID_EXPERT_RUN_H_

#include <optional>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/decoder.h"
#include "apogee/nn/moe/moe.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/moe_hybrid_parallel.h"

namespace apogee::testing::expert_run {

inline constexpr int64_t kHidden = 16, kExperts = 8, kTopK = 2, kTokens = 6, kSamples = 3;

inline nn::DecoderConfig ExpertConfig() {
  nn::DecoderConfig config{.vocab_size = 19, .num_layers = 2, .max_tokens = kTokens};
  config.block.hidden_size = kHidden;
  config.block.intermediate_size = 24;
  config.block.num_heads = 4;
  config.block.num_kv_heads = 2;
  config.block.head_dim = 4;
  config.block.init = nn::Init::Normal(0, 0.3);
  config.block.moe = {.num_experts = kExperts, .top_k = kTopK, .intermediate_size = 12};
  return config;
}

struct ExpertRun {
  ExpertRun(const comm::World& world, const HybridParallelOptions& options,
            const nn::DecoderConfig& config = ExpertConfig(), const TrainingOptions& training = {})
      : model(config), plugin(world, training, options), booster(plugin) {
    model.Initialize(world.context(), {.seed = 1});
    optimizer.emplace(model.Parameters(), optim::SgdOptions{.lr = 0.1});
  }
  void Boost() {
    boosted.emplace(booster.boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()}));
  }
  Tensor Tokens(const comm::World& world) const {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < kSamples * kTokens; ++i) {
      ids.push_back((i * i * 7 + 3 * i + world.rank() * 5) % 19);
    }
    return Tensor::FromVector(ids, {kSamples, kTokens}, world.context());
  }
  void Backward(const Tensor& tokens) {
    booster.backward(boosted->criterion(boosted->model(tokens), tokens), boosted->optimizer);
  }

  nn::Decoder model;
  std::optional<optim::Sgd> optimizer;
  MoeHybridParallelPlugin plugin;
  Booster booster;
  std::optional<Boosted> boosted;
};

}  // namespace apogee::testing::expert_run

#endif  // APOGEE_TESTS_PLUGINS_HYBRID_EXPERT_RUN_H_
