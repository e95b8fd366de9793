// SPDX-License-Identifier: Apache-2.0

// OLMo 2 (2024): norms behind attention and MLP, and of all queries and keys. Phi-3 (2024): fused
// layers of queries, keys and values, and of gate and up.
#include "apogee/nn/models/families/families.h"

namespace apogee::nn {
namespace {

constexpr FamilyDefaults kOlmo2{.vocab_size = 50304,
                                .hidden_size = 4096,
                                .intermediate_size = 11008,
                                .layers = 32,
                                .heads = 32,
                                .max_tokens = 2048,
                                .norm_eps = 1e-5,
                                .pad = 1};
constexpr FamilyDefaults kPhi3{.vocab_size = 32064,
                               .hidden_size = 3072,
                               .intermediate_size = 8192,
                               .layers = 32,
                               .heads = 32,
                               .max_tokens = 4096,
                               .norm_eps = 1e-5,
                               .pad = 32000};

}  // namespace

DecoderConfig ReadOlmo2(FamilyFields& f) {
  DecoderConfig config = f.Sizes(kOlmo2);
  config.model_type = "olmo2";
  BlockConfig& block = config.block;
  f.Rope(kOlmo2, config);
  block.activation = f.ReadActivation("hidden_act", "silu", true);
  block.qkv_bias = block.out_bias = f.fields.Flag("attention_bias", false);
  block.head_norm = HeadNorm::kAllHeads;
  block.names.attention_norms = {
      .before = {}, .after = "post_attention_layernorm", .after_add = {}};
  block.names.mlp_norms = {.before = {}, .after = "post_feedforward_layernorm", .after_add = {}};
  f.TellDropout("attention_dropout", 0, "attention weights");
  return config;
}

DecoderConfig ReadPhi3(FamilyFields& f) {
  DecoderConfig config = f.Sizes(kPhi3);
  config.model_type = "phi3";
  BlockConfig& block = config.block;
  f.Rope(kPhi3, config);
  block.activation = f.ReadActivation("hidden_act", "silu", true);
  block.qkv_layout = QkvLayout::kSections;
  block.names.qkv = "self_attn.qkv_proj";
  block.names.gate_up = "mlp.gate_up_proj";
  block.dropout = f.Dropout("resid_pdrop", 0);
  block.has_dropout = block.dropout > 0;
  if (!f.fields.HasNull("sliding_window") && f.fields.Has("sliding_window")) {
    const int64_t window = f.fields.Size("sliding_window", 0);
    if (window < config.max_tokens) block.window = window;
  }
  f.fields.Has("original_max_position_embeddings");  // of a scaling that is refused
  f.TellDropout("embd_pdrop", 0, "embeddings");
  f.TellDropout("attention_dropout", 0, "attention weights");
  f.fields.MustBe("attention_bias", false);
  return config;
}

}  // namespace apogee::nn
