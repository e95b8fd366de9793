// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/hf_config.h"

#include <nlohmann/json.hpp>

namespace apogee::nn {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kGpt2Architecture = "GPT2LMHeadModel";
constexpr const char* kLlamaArchitecture = "LlamaForCausalLM";
void AddTokenIds(const TokenIds& token_ids, Json& json) {
  for (const auto& [name, ids] : token_ids) {
    if (ids.size() > 1) {
      json[name] = ids;
    } else {
      json[name] = ids.empty() ? Json() : Json(ids[0]);
    }
  }
}

}  // namespace

std::string FormatHfConfig(const Gpt2Config& config) {
  Json json;
  json["architectures"] = {kGpt2Architecture};
  json["model_type"] = "gpt2";
  json["vocab_size"] = config.vocab_size;
  json["n_positions"] = config.n_positions;
  json["n_embd"] = config.n_embd;
  json["n_layer"] = config.n_layer;
  json["n_head"] = config.n_head;
  json["n_inner"] = nullptr;
  json["activation_function"] = "gelu_new";
  json["resid_pdrop"] = config.dropout;
  json["embd_pdrop"] = config.dropout;
  json["attn_pdrop"] = 0.0;
  json["layer_norm_epsilon"] = config.layer_norm_epsilon;
  json["scale_attn_weights"] = true;
  json["scale_attn_by_inverse_layer_idx"] = false;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  AddTokenIds(config.token_ids, json);
  return json.dump(2) + "\n";
}

std::string FormatHfConfig(const LlamaConfig& config) {
  Json json;
  json["architectures"] = {kLlamaArchitecture};
  json["model_type"] = "llama";
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.hidden_size / config.num_attention_heads;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = nullptr;
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = false;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  AddTokenIds(config.token_ids, json);
  return json.dump(2) + "\n";
}

}  // namespace apogee::nn
