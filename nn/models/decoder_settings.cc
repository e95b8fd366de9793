// SPDX-License-Identifier: Apache-2.0

// The settings of a Decoder that checkpoints record. Settings with the value that most families
// have are left out, so that a new option does not change what older checkpoints say.
#include <cmath>

#include "apogee/nn/models/decoder.h"
#include "apogee/nn/moe/moe.h"

namespace apogee::nn {
namespace {

std::string TextOf(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ",") + ConfigText(value);
  return text;
}

// Settings of the block that the shapes and names of parameters do not show.
void DescribeBlock(const DecoderConfig& config, std::map<std::string, std::string>& function) {
  const BlockConfig& block = config.block;
  if (block.head_dim * block.num_heads != block.hidden_size) {
    function["head_dim"] = ConfigText(block.head_dim);
  }
  if (block.has_rotary) {
    function["rope_theta"] = ConfigText(block.rotary.theta);
    if (block.rotary.dims > 0) function["rotary_dims"] = ConfigText(block.rotary.dims);
    if (!block.rotary.inverse_frequencies.empty()) {
      function["rotary_frequencies"] = TextOf(block.rotary.inverse_frequencies);
    }
  }
  if (block.attention_scale > 0) function["attention_scale"] = ConfigText(block.attention_scale);
  if (!config.attention_scales.empty()) {
    function["attention_scale"] = TextOf(config.attention_scales);
  }
  if (block.attention_soft_cap > 0) {
    function["attention_soft_cap"] = ConfigText(block.attention_soft_cap);
  }
  if (block.window > 0) function["window"] = ConfigText(block.window);
  if (!config.windows.empty()) function["window"] = ConfigText(config.windows);
  if (block.norm_weight_offset != 0) {
    function["norm_weight_offset"] = ConfigText(block.norm_weight_offset);
  }
  if (block.parallel_residual) function["parallel_residual"] = ConfigText(true);
  if (block.moe.num_experts > 0) function["moe"] = MoeText(block.moe);
  if (!config.dense_layers.empty()) function["dense_layers"] = ConfigText(config.dense_layers);
  const Activation usual = block.gated_mlp ? Activation::kSilu : Activation::kGeluTanh;
  if (block.activation != usual) function["activation"] = ConfigText(block.activation);
}

}  // namespace

void Decoder::DescribeConfig(ConfigTexts& texts) const {
  const BlockConfig& block = config_.block;
  // GPT-2's files have names of their own.
  const bool gpt2 = config_.model_type == "gpt2";
  std::map<std::string, std::string>& function = texts.function;
  function["type"] = config_.model_type;
  function["vocab_size"] = ConfigText(config_.vocab_size);
  function[gpt2 ? "n_embd" : "hidden_size"] = ConfigText(block.hidden_size);
  function[gpt2 ? "n_layer" : "num_hidden_layers"] = ConfigText(config_.num_layers);
  function[gpt2 ? "n_head" : "num_attention_heads"] = ConfigText(block.num_heads);
  const bool rms = block.norm == NormKind::kRmsNorm;
  function[gpt2 ? "layer_norm_epsilon" : (rms ? "rms_norm_eps" : "layer_norm_eps")] =
      ConfigText(block.norm_eps);
  function["tie_word_embeddings"] = ConfigText(config_.tie_word_embeddings);
  if (!gpt2) {
    function["intermediate_size"] = ConfigText(block.intermediate_size);
    function["num_key_value_heads"] = ConfigText(block.num_kv_heads);
  }
  DescribeBlock(config_, function);
  if (config_.embedding_scale != 1) {
    function["embedding_scale"] = ConfigText(config_.embedding_scale);
  }
  if (config_.logits_soft_cap > 0) {
    function["logits_soft_cap"] = ConfigText(config_.logits_soft_cap);
  }
  if (!config_.names.positions.empty()) {
    function[gpt2 ? "n_positions" : "max_position_embeddings"] = ConfigText(config_.max_tokens);
  } else {
    // No weight depends on it: a longer limit allows longer sequences, and computes the same
    // function.
    texts.training["max_position_embeddings"] = ConfigText(config_.max_tokens);
  }
  if (block.has_dropout) texts.training["dropout"] = ConfigText(block.dropout);
  if (config_.padding_id >= 0) texts.training["padding_id"] = ConfigText(config_.padding_id);
  texts.complete = true;
}

}  // namespace apogee::nn
