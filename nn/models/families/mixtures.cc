// SPDX-License-Identifier: Apache-2.0

// Families with a mixture of experts: Mixtral (Jiang et al., 2024), Qwen2-MoE (Yang et al., 2024)
// and Qwen3-MoE (2025). Their attention is that of Mistral, Qwen2 and Qwen3.
#include <algorithm>

#include "apogee/nn/models/families/families.h"

namespace apogee::nn {
namespace {

constexpr FamilyDefaults kMixtral{.vocab_size = 32000,
                                  .hidden_size = 4096,
                                  .intermediate_size = 14336,
                                  .layers = 32,
                                  .heads = 32,
                                  .kv_heads = 8,
                                  .max_tokens = 131072,
                                  .norm_eps = 1e-5,
                                  .theta = 1e6};
constexpr FamilyDefaults kQwen2Moe{.vocab_size = 151936,
                                   .hidden_size = 2048,
                                   .intermediate_size = 5632,
                                   .layers = 24,
                                   .heads = 16,
                                   .kv_heads = 16,
                                   .max_tokens = 32768};
constexpr FamilyDefaults kQwen3Moe{.vocab_size = 151936,
                                   .hidden_size = 2048,
                                   .intermediate_size = 6144,
                                   .layers = 24,
                                   .heads = 32,
                                   .kv_heads = 4,
                                   .max_tokens = 32768};

constexpr HfRange kCoefficients{.from = 0, .below = 1e6};

// The library's values for missing fields.
struct ExpertDefaults {
  const char* count_name = "num_experts";
  const char* other_count_name = "num_local_experts";
  int64_t count = 0, top_k = 0;
  const char* size_name = "moe_intermediate_size";
  int64_t size = 0;
};

void ReadExperts(FamilyFields& f, const ExpertDefaults& defaults, MoeConfig& moe) {
  f.fields.AlsoAs(defaults.count_name, defaults.other_count_name);
  moe.num_experts = f.fields.Size(defaults.count_name, defaults.count);
  moe.top_k = f.fields.Size("num_experts_per_tok", defaults.top_k);
  if (moe.top_k > moe.num_experts) {
    f.fields.Refuse("num_experts_per_tok", internal::Concat("must be at most ", defaults.count_name,
                                                            ", ", moe.num_experts));
  }
  moe.intermediate_size = f.fields.Size(defaults.size_name, defaults.size);
  moe.balance = BalanceLoss::kHfLayers;
  moe.balance_coefficient = f.fields.Number("router_aux_loss_coef", 0.001, kCoefficients);
  f.fields.Flag("output_router_logits", false);  // of the library's output alone
}

// Every decoder_sparse_step-th layer has experts, except those of mlp_only_layers.
void ReadDenseLayers(FamilyFields& f, DecoderConfig& config) {
  const int64_t step = f.fields.Size("decoder_sparse_step", 1);
  const std::vector<int64_t> listed = f.fields.Integers("mlp_only_layers");
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if ((layer + 1) % step != 0 || std::ranges::find(listed, layer) != listed.end()) {
      config.dense_layers.push_back(layer);
    }
  }
}

}  // namespace

DecoderConfig ReadMixtral(FamilyFields& f) {
  DecoderConfig config = CommonOfLlama(f, kMixtral, "mixtral");
  const int64_t window = f.fields.Size("sliding_window", 0, /*least=*/0);
  f.fields.MustListOnly("layer_types", window > 0 ? "sliding_attention" : "full_attention");
  if (window > 0 && window < config.max_tokens) config.block.window = window;
  MoeConfig& moe = config.block.moe;
  ReadExperts(f,
              {.count_name = "num_local_experts",
               .other_count_name = "num_experts",
               .count = 8,
               .top_k = 2,
               .size_name = "intermediate_size",
               .size = config.block.intermediate_size},
              moe);
  moe.normalise = true;
  moe.names.expert_gate = "w1";
  moe.names.expert_up = "w3";
  moe.names.expert_down = "w2";
  config.block.names.mlp = "block_sparse_moe";
  if (f.fields.Number("router_jitter_noise", 0, kCoefficients) != 0) {
    f.fields.Refuse("router_jitter_noise", "only 0 works: no noise is added to the router's input");
  }
  return config;
}

DecoderConfig ReadQwen2Moe(FamilyFields& f) {
  DecoderConfig config = CommonOfLlama(f, kQwen2Moe, "qwen2_moe");
  config.block.qkv_bias = f.fields.Flag("qkv_bias", true);
  ReadQwenWindows(f, config);
  MoeConfig& moe = config.block.moe;
  ReadExperts(f, {.count = 60, .top_k = 4, .size = 1408}, moe);
  moe.normalise = f.fields.Flag("norm_topk_prob", false);
  moe.shared_size = f.fields.Size("shared_expert_intermediate_size", 5632);
  moe.shared_gate = true;
  ReadDenseLayers(f, config);
  return config;
}

DecoderConfig ReadQwen3Moe(FamilyFields& f) {
  DecoderConfig config = CommonOfLlama(f, kQwen3Moe, "qwen3_moe");
  config.block.head_norm = HeadNorm::kPerHead;
  config.block.qkv_bias = config.block.out_bias = f.fields.Flag("attention_bias", false);
  // The library uses the window in every layer.
  const int64_t window = ReadQwenWindow(f);
  f.fields.Size("max_window_layers", 28, /*least=*/0);
  if (window > 0 && window < config.max_tokens) config.block.window = window;
  MoeConfig& moe = config.block.moe;
  ReadExperts(f, {.count = 128, .top_k = 8, .size = 768}, moe);
  moe.normalise = f.fields.Flag("norm_topk_prob", false);
  ReadDenseLayers(f, config);
  return config;
}

}  // namespace apogee::nn
