// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/gpt2.h"

#include <cmath>
#include <string>

namespace apogee::nn {
namespace {

BlockNames Gpt2BlockNames() {
  return {.attention_norms = {.before = "ln_1", .after = {}, .after_add = {}},
          .mlp_norms = {.before = "ln_2", .after = {}, .after_add = {}},
          .norms_last = false,
          .attention = "attn",
          .mlp = "mlp",
          .qkv = "attn.c_attn",
          .out = "attn.c_proj",
          .core = "attn.core",
          .up = "mlp.c_fc",
          .down = "mlp.c_proj"};
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
  return {.model_type = "gpt2",
          .vocab_size = config.vocab_size,
          .num_layers = config.n_layer,
          .max_tokens = config.n_positions,
          .block = {.hidden_size = config.n_embd,
                    .intermediate_size = 4 * config.n_embd,
                    .num_heads = config.n_head,
                    .num_kv_heads = config.n_head,
                    .head_dim = config.n_embd / config.n_head,
                    .norm = NormKind::kLayerNorm,
                    .norm_eps = config.layer_norm_epsilon,
                    .qkv_layout = QkvLayout::kSections,
                    .qkv_bias = true,
                    .out_bias = true,
                    .mlp_bias = true,
                    .has_rotary = false,
                    .gated_mlp = false,
                    .activation = Activation::kGeluTanh,
                    .weight_layout = WeightLayout::kInOut,
                    .has_dropout = true,
                    .dropout = config.dropout,
                    .residual_init = Init::Normal(0, 0.02 / std::sqrt(branches)),
                    .names = Gpt2BlockNames()},
          .tie_word_embeddings = config.tie_word_embeddings,
          .recompute = config.recompute,
          .names = {.tokens = "transformer.wte",
                    .positions = "transformer.wpe",
                    .dropout = "transformer.drop",
                    .layers = "transformer.h",
                    .norm = "transformer.ln_f"},
          .token_ids = config.token_ids};
}

}  // namespace apogee::nn
