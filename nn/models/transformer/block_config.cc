// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/transformer/block_config.h"

#include "apogee/core/text/text.h"

namespace apogee::nn {

BlockConfig EncoderBlock() {
  BlockConfig block;
  block.norm = NormKind::kLayerNorm;
  block.norm_eps = 1e-12;
  block.qkv_bias = block.out_bias = block.mlp_bias = true;
  block.has_rotary = false;
  block.causal = false;
  block.gated_mlp = false;
  block.activation = Activation::kGelu;
  block.has_dropout = true;
  block.names.attention = "attention";
  block.names.mlp = "";
  block.names.out = "attention.output.dense";
  block.names.core = "attention.core";
  block.names.up = "intermediate.dense";
  block.names.down = "output.dense";
  return block;
}

std::string BlockProblems(const BlockConfig& c) {
  std::string problems;
  const auto require = [&](bool ok, const auto&... parts) {
    if (!ok) problems += "\n  " + internal::Concat(parts...);
  };
  require(c.hidden_size > 0, "hidden_size must be positive, got ", c.hidden_size);
  require(c.intermediate_size > 0, "intermediate_size must be positive, got ", c.intermediate_size);
  require(c.num_heads > 0 && c.num_kv_heads > 0 && c.num_heads % c.num_kv_heads == 0,
          "num_heads must be a multiple of num_kv_heads, got ", c.num_heads, " and ",
          c.num_kv_heads);
  require(c.head_dim > 0, "head_dim must be positive, got ", c.head_dim);
  const int64_t dims = c.rotary.dims == 0 ? c.head_dim : c.rotary.dims;
  require(!c.has_rotary || (dims > 0 && dims % 2 == 0 && dims <= c.head_dim),
          "rotary positions turn pairs of the ", c.head_dim, " dims of a head, got ", dims,
          " dims; give an even number of them");
  require(c.qkv_layout != QkvLayout::kByHead || c.num_heads == c.num_kv_heads,
          "queries, keys and values by head need as many key-value heads as heads, got ",
          c.num_kv_heads, " and ", c.num_heads);
  require(c.qkv_layout == QkvLayout::kSeparate || c.head_norm == HeadNorm::kNone,
          "norms of queries and keys need layers of their own for these");
  require(c.qkv_layout != QkvLayout::kSections || c.has_rotary || c.num_heads == c.num_kv_heads,
          "one layer of queries, keys and values without rotary positions needs as many key-value "
          "heads as heads, got ",
          c.num_kv_heads, " and ", c.num_heads);
  require(c.window >= 0 && (c.window == 0 || c.causal),
          "a window needs causal attention and is not negative, got ", c.window);
  require(c.dropout >= 0 && c.dropout < 1, "dropout must be in [0, 1), got ", c.dropout);
  require(!c.parallel_residual ||
              (c.names.attention_norms.after_add.empty() && c.names.mlp_norms.after_add.empty()),
          "a parallel residual has no norm after the sum");
  if (c.moe.num_experts > 0) {
    problems += MoeProblems(c.moe);
    require(!c.names.mlp.empty(), "a mixture of experts needs a name (BlockNames::mlp)");
  }
  return problems;
}

}  // namespace apogee::nn
