// SPDX-License-Identifier: Apache-2.0

// Llama (Touvron et al., 2023), Mistral (Jiang et al., 2023), Qwen2 (Yang et al., 2024) and Qwen3
// (2025): the defaults of nn::Decoder, with few differences.
#include "apogee/nn/models/families/families.h"

namespace apogee::nn {
namespace {

constexpr FamilyDefaults kLlama{.vocab_size = 32000,
                                .hidden_size = 4096,
                                .intermediate_size = 11008,
                                .layers = 32,
                                .heads = 32,
                                .max_tokens = 2048};
constexpr FamilyDefaults kMistral{.vocab_size = 32000,
                                  .hidden_size = 4096,
                                  .intermediate_size = 14336,
                                  .layers = 32,
                                  .heads = 32,
                                  .kv_heads = 8,
                                  .max_tokens = 131072};
constexpr FamilyDefaults kQwen2{.vocab_size = 151936,
                                .hidden_size = 4096,
                                .intermediate_size = 22016,
                                .layers = 32,
                                .heads = 32,
                                .kv_heads = 32,
                                .max_tokens = 32768};
constexpr FamilyDefaults kQwen3{.vocab_size = 151936,
                                .hidden_size = 4096,
                                .intermediate_size = 22016,
                                .layers = 32,
                                .heads = 32,
                                .kv_heads = 32,
                                .head_dim = 128,
                                .max_tokens = 32768};

}  // namespace

DecoderConfig CommonOfLlama(FamilyFields& f, const FamilyDefaults& defaults, const char* type) {
  DecoderConfig config = f.Sizes(defaults);
  config.model_type = type;
  f.Rope(defaults, config);
  config.block.activation = f.ReadActivation("hidden_act", "silu", true);
  f.TellDropout("attention_dropout", 0, "attention weights");
  return config;
}

DecoderConfig ReadLlama(FamilyFields& f) {
  DecoderConfig config = CommonOfLlama(f, kLlama, "llama");
  const bool attention_bias = f.fields.Flag("attention_bias", false);
  config.block.qkv_bias = config.block.out_bias = attention_bias;
  config.block.mlp_bias = f.fields.Flag("mlp_bias", false);
  return config;
}

DecoderConfig ReadMistral(FamilyFields& f) {
  DecoderConfig config = CommonOfLlama(f, kMistral, "mistral");
  const int64_t missing = f.fields.HasNull("sliding_window") ? 0 : 4096;
  const int64_t window = f.fields.Size("sliding_window", missing);
  // The library uses the window in every layer, and does not read layer_types.
  f.fields.MustListOnly("layer_types", window > 0 ? "sliding_attention" : "full_attention");
  if (window > 0 && window < config.max_tokens) config.block.window = window;
  f.fields.MustBe("attention_bias", false);
  f.fields.MustBe("mlp_bias", false);
  return config;
}

int64_t ReadQwenWindow(FamilyFields& f) {
  const bool use = f.fields.Flag("use_sliding_window", false);
  const int64_t missing = f.fields.HasNull("sliding_window") ? 0 : 4096;
  const int64_t window = f.fields.Size("sliding_window", missing, /*least=*/0);
  return use ? window : 0;
}

void ReadQwenWindows(FamilyFields& f, DecoderConfig& config) {
  const int64_t window = ReadQwenWindow(f);
  const int64_t first = f.fields.Size("max_window_layers", 28, /*least=*/0);
  f.Windows(
      window, [&](int64_t layer) { return layer >= first; }, config);
}

DecoderConfig ReadQwen2(FamilyFields& f) {
  DecoderConfig config = CommonOfLlama(f, kQwen2, "qwen2");
  config.block.qkv_bias = true;
  ReadQwenWindows(f, config);
  f.fields.MustBe("use_mrope", false);
  return config;
}

DecoderConfig ReadQwen3(FamilyFields& f) {
  DecoderConfig config = CommonOfLlama(f, kQwen3, "qwen3");
  config.block.head_norm = HeadNorm::kPerHead;
  config.block.qkv_bias = config.block.out_bias = f.fields.Flag("attention_bias", false);
  ReadQwenWindows(f, config);
  return config;
}

}  // namespace apogee::nn
