// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/llama.h"

#include <string>

namespace apogee::nn {

namespace {

// Under the names of LlamaConfig.
void Validate(const LlamaConfig& c) {
  std::string problems;
  const auto require = [&](bool ok, const auto&... parts) {
    if (!ok) problems += "\n  " + internal::Concat(parts...);
  };
  require(c.vocab_size > 0, "vocab_size must be positive, got ", c.vocab_size);
  require(c.intermediate_size > 0, "intermediate_size must be positive, got ", c.intermediate_size);
  require(c.num_hidden_layers > 0, "num_hidden_layers must be positive, got ", c.num_hidden_layers);
  const bool heads = c.num_attention_heads > 0 && c.num_key_value_heads > 0;
  require(heads && c.num_attention_heads % c.num_key_value_heads == 0,
          "num_attention_heads must be a multiple of num_key_value_heads, got ",
          c.num_attention_heads, " and ", c.num_key_value_heads);
  require(heads && c.hidden_size > 0 && c.hidden_size % (2 * c.num_attention_heads) == 0,
          "hidden_size must be an even multiple of num_attention_heads (rotary positions pair "
          "dims), got ",
          c.hidden_size, " and ", c.num_attention_heads);
  require(c.max_position_embeddings > 0, "max_position_embeddings must be positive, got ",
          c.max_position_embeddings);
  APOGEE_CHECK(problems.empty(), "llama: invalid config:", problems);
}

}  // namespace

DecoderConfig DecoderConfigOf(const LlamaConfig& config) {
  Validate(config);
  // Field by field: see gpt2.cc.
  DecoderConfig decoder;
  decoder.model_type = "llama";
  decoder.vocab_size = config.vocab_size;
  decoder.num_layers = config.num_hidden_layers;
  decoder.max_tokens = config.max_position_embeddings;
  decoder.tie_word_embeddings = config.tie_word_embeddings;
  decoder.recompute = config.recompute;
  decoder.head_chunks = config.head_chunks;
  decoder.token_ids = config.token_ids;
  BlockConfig& block = decoder.block;
  block.recompute_activations = config.recompute_activations;
  block.hidden_size = config.hidden_size;
  block.intermediate_size = config.intermediate_size;
  block.num_heads = config.num_attention_heads;
  block.num_kv_heads = config.num_key_value_heads;
  block.head_dim = config.hidden_size / config.num_attention_heads;
  block.norm_eps = config.rms_norm_eps;
  block.rotary.theta = config.rope_theta;
  return decoder;
}

}  // namespace apogee::nn
