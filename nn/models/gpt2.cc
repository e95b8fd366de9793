// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/gpt2.h"

#include <cmath>
#include <string>

namespace apogee::nn {
namespace {

// Field by field, here and below: if memory runs out inside nested braces, g++ 12 destroys some
// fields twice.
BlockNames Gpt2BlockNames() {
  BlockNames names;
  names.attention_norms.before = "ln_1";
  names.mlp_norms.before = "ln_2";
  names.norms_last = false;
  names.attention = "attn";
  names.mlp = "mlp";
  names.qkv = "attn.c_attn";
  names.out = "attn.c_proj";
  names.core = "attn.core";
  names.up = "mlp.c_fc";
  names.down = "mlp.c_proj";
  return names;
}

// Under the names of Gpt2Config.
void Validate(const Gpt2Config& c) {
  std::string problems;
  const auto require = [&](bool ok, const auto&... parts) {
    if (!ok) problems += "\n  " + internal::Concat(parts...);
  };
  require(c.vocab_size > 0, "vocab_size must be positive, got ", c.vocab_size);
  require(c.n_positions > 0, "n_positions must be positive, got ", c.n_positions);
  require(c.n_layer > 0, "n_layer must be positive, got ", c.n_layer);
  require(c.n_head > 0 && c.n_embd > 0 && c.n_embd % c.n_head == 0,
          "n_embd must be a positive multiple of n_head, got ", c.n_embd, " and ", c.n_head);
  require(c.dropout >= 0 && c.dropout < 1, "dropout must be in [0, 1), got ", c.dropout);
  APOGEE_CHECK(problems.empty(), "gpt2: invalid config:", problems);
}

}  // namespace

DecoderConfig DecoderConfigOf(const Gpt2Config& config) {
  Validate(config);
  // GPT-2's initialisation: residual projections are scaled by 1 / sqrt(number of residual
  // branches).
  const double branches = 2.0 * static_cast<double>(config.n_layer);
  DecoderConfig decoder;
  decoder.model_type = "gpt2";
  decoder.vocab_size = config.vocab_size;
  decoder.num_layers = config.n_layer;
  decoder.max_tokens = config.n_positions;
  decoder.tie_word_embeddings = config.tie_word_embeddings;
  decoder.recompute = config.recompute;
  decoder.head_chunks = config.head_chunks;
  decoder.names.tokens = "transformer.wte";
  decoder.names.positions = "transformer.wpe";
  decoder.names.dropout = "transformer.drop";
  decoder.names.layers = "transformer.h";
  decoder.names.norm = "transformer.ln_f";
  decoder.token_ids = config.token_ids;
  BlockConfig& block = decoder.block;
  block.recompute_activations = config.recompute_activations;
  block.hidden_size = config.n_embd;
  block.intermediate_size = 4 * config.n_embd;
  block.num_heads = block.num_kv_heads = config.n_head;
  block.head_dim = config.n_embd / config.n_head;
  block.norm = NormKind::kLayerNorm;
  block.norm_eps = config.layer_norm_epsilon;
  block.qkv_layout = QkvLayout::kSections;
  block.qkv_bias = block.out_bias = block.mlp_bias = true;
  block.has_rotary = false;
  block.gated_mlp = false;
  block.activation = Activation::kGeluTanh;
  block.weight_layout = WeightLayout::kInOut;
  block.has_dropout = true;
  block.dropout = config.dropout;
  block.residual_init = Init::Normal(0, 0.02 / std::sqrt(branches));
  block.names = Gpt2BlockNames();
  return decoder;
}

}  // namespace apogee::nn
