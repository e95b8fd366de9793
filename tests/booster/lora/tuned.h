// SPDX-License-Identifier: Apache-2.0

// A tiny model with an adapter, under a plugin of a given name, for the tests of adapters.
//
//   Tuned run(/*gpt2=*/false, world, "gemini");
//   run.Step(world);
#ifndef APOGEE_TESTS_BOOSTER_LORA_TUNED_H_
#define APOGEE_TESTS_BOOSTER_LORA_TUNED_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::testing::adapters {

inline constexpr int64_t kVocab = 20;

struct Spread {
  const char* plugin;
  int ranks;
};

inline constexpr Spread kSpreads[] = {{"single", 1}, {"ddp", 2},    {"zero2", 3},
                                      {"gemini", 2}, {"hybrid", 4}, {"pipeline", 2}};

inline std::unique_ptr<Plugin> Make(const std::string& plugin, const comm::World& world,
                                    Precision precision) {
  const TrainingOptions training{.precision = precision, .bucket_bytes = 900};
  if (plugin == "single") return std::make_unique<SingleRankPlugin>(training);
  if (plugin == "ddp") return std::make_unique<DdpPlugin>(world.group(), training);
  if (plugin == "gemini") return std::make_unique<GeminiPlugin>(world.group(), training);
  if (plugin == "zero2") {
    return std::make_unique<LowLevelZeroPlugin>(world.group(), training,
                                                LowLevelZeroOptions{.stage = 2});
  }
  const bool pipeline = plugin == "pipeline";
  return std::make_unique<HybridParallelPlugin>(
      world, training,
      HybridParallelOptions{.tp_size = pipeline ? 1 : 2,
                            .pp_size = pipeline ? 2 : 1,
                            .stage = 1,
                            .num_microbatches = pipeline ? 2 : 0});
}

inline std::unique_ptr<nn::Module> MakeModel(bool gpt2) {
  if (gpt2) {
    return std::make_unique<nn::Gpt2>(nn::Gpt2Config{
        .vocab_size = kVocab, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 4});
  }
  return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kVocab,
                                                     .hidden_size = 32,
                                                     .intermediate_size = 24,
                                                     .num_hidden_layers = 2,
                                                     .num_attention_heads = 4,
                                                     .num_key_value_heads = 2,
                                                     .max_position_embeddings = 8});
}

inline nn::LoraOptions OptionsOf(bool gpt2) {
  if (gpt2) return {.rank = 2, .alpha = 3, .targets = {"c_attn", "c_proj"}, .use_rslora = true};
  return {.rank = 2,
          .alpha = 3,
          .targets = {"q_proj", "down_proj", "embed_tokens"},
          .rank_pattern = {{"down_proj", 3}},
          .modules_to_save = {"lm_head"}};
}

struct Tuned {
  Tuned(bool gpt2, const comm::World& world, const std::string& plugin_name,
        const std::string& adapter_dir = "", uint64_t seed = 1,
        Precision precision = Precision::kF32, std::optional<nn::QuantizeOptions> quantize = {},
        bool dora = false)
      : model(MakeModel(gpt2)), plugin(Make(plugin_name, world, precision)), booster(*plugin) {
    model->Initialize(world.context(), {.seed = 1});
    if (adapter_dir.empty()) {
      nn::LoraOptions options = OptionsOf(gpt2);
      options.seed = seed;
      options.quantize = quantize;
      options.use_dora = dora;
      booster.enable_lora(*model, options);
    } else {
      OkOrThrow(booster.enable_lora_from(*model, adapter_dir, "default",
                                         checkpoint::RealFileSystem(), quantize));
    }
    optimizer.emplace(model->Parameters(), optim::AdamWOptions{.lr = 0.1});
    boosted.emplace(booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()}));
  }
  void Step(const comm::World& world) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 16; ++i)
      ids.push_back((i * i * 7 + 3 * i + plugin->data_rank()) % kVocab);
    const Tensor tokens = Tensor::FromVector(ids, {2, 8}, world.context());
    booster.execute_pipeline({tokens, tokens}, boosted->model, boosted->criterion,
                             &boosted->optimizer);
    boosted->optimizer.step();
    boosted->optimizer.zero_grad();
  }

  std::unique_ptr<nn::Module> model;
  std::unique_ptr<Plugin> plugin;
  Booster booster;
  std::optional<optim::AdamW> optimizer;
  std::optional<Boosted> boosted;
};

}  // namespace apogee::testing::adapters

#endif  // APOGEE_TESTS_BOOSTER_LORA_TUNED_H_
