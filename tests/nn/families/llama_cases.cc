// SPDX-License-Identifier: Apache-2.0

// Llama and what has its names: Mistral, Qwen, Gemma, OLMo 2.
#include <set>

#include "apogee/tests/nn/families/folder_reader.h"

namespace apogee::nn::families_test {
namespace {

// Of Llama 3.1: long waves are stretched, short ones stay, those between are a mix.
Row Llama3(Row frequencies, double factor, double low, double high, double trained) {
  for (double& f : frequencies) {
    const double turns = trained * f / (2 * std::acos(-1.0));  // within the trained positions
    const double mix = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    f = (1 - mix) * f / factor + mix * f;
  }
  return frequencies;
}

// "0.q" for "0.", "q"; "model.layers.0.self_attn.q_proj" for the folder.
void Attention(Reader& r, const std::string& at, const std::string& from, bool qkv_bias,
               bool out_bias) {
  for (const std::string name : {"q", "k", "v"}) {
    r.Linear(at + name, from + name + "_proj", qkv_bias);
  }
  r.Linear(at + "o", from + "o_proj", out_bias);
}

void GatedMlp(Reader& r, const std::string& at, const std::string& from, bool bias) {
  for (const std::string name : {"gate", "up", "down"}) {
    r.Linear(at + name, from + name + "_proj", bias);
  }
}

struct LlamaOptions {
  Transformer t;
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool head_norms = false;
  bool tied = false;
  // In layers with experts, where they are, and how their matrices are called.
  size_t experts = 0;
  std::string mixture = "mlp.", matrices[3] = {"gate_proj", "up_proj", "down_proj"};
  bool shared = false;
  std::set<size_t> dense = {};
  // The names of a layer's norms, and the reference's.
  std::vector<std::pair<std::string, std::string>> norms = {
      {"before_attention", "input_layernorm"}, {"before_mlp", "post_attention_layernorm"}};
};

void Mixture(Reader& r, const std::string& at, const std::string& from,
             const LlamaOptions& options) {
  r.Linear(at + "router", from + "gate");
  const std::string to[3] = {"gate", "up", "down"};
  for (size_t e = 0; e < options.experts; ++e) {
    const std::string number = std::to_string(e) + ".";
    for (size_t m = 0; m < 3; ++m) {
      r.Linear(at + "e" + number + to[m], from + "experts." + number + options.matrices[m]);
    }
  }
  if (!options.shared) return;
  GatedMlp(r, at + "shared.", from + "shared_expert.", false);
  r.Linear(at + "shared_gate", from + "shared_expert_gate");
}

Transformer MakeLlama(Folder& folder, const LlamaOptions& options) {
  Reader r{folder, options.t};
  r.t.hidden = kHidden;
  r.Linear("embed", "model.embed_tokens");
  for (size_t i = 0; i < r.t.layers; ++i) {
    const std::string at = std::to_string(i) + ".", from = "model.layers." + at;
    for (const auto& [to, name] : options.norms) r.Norm(at + to, from + name);
    Attention(r, at, from + "self_attn.", options.qkv_bias, options.out_bias);
    if (options.head_norms) {
      r.Norm(at + "q_norm", from + "self_attn.q_norm");
      r.Norm(at + "k_norm", from + "self_attn.k_norm");
    }
    if (options.experts > 0 && !options.dense.contains(i)) {
      Mixture(r, at, from + options.mixture, options);
    } else {
      GatedMlp(r, at, from + "mlp.", options.mlp_bias);
    }
  }
  r.Norm("norm", "model.norm");
  r.Linear("head", options.tied ? "model.embed_tokens" : "lm_head");
  return r.t;
}

Transformer Llama(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 3,
                                  .kv_heads = 1,
                                  .layers = 2,
                                  .eps = 1e-3,
                                  .frequencies = Frequencies(100, 4)}});
}

Transformer Llama31(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 4,
                                  .kv_heads = 2,
                                  .layers = 2,
                                  .eps = 1e-3,
                                  .frequencies = Llama3(Frequencies(100, 10), 8, 1, 4, 32)}});
}

Transformer LlamaLinear(Folder& folder) {
  Row frequencies = Frequencies(50, 6);
  for (double& f : frequencies) f /= 2.5;
  return MakeLlama(
      folder,
      {.t = {.heads = 2, .kv_heads = 2, .layers = 2, .eps = 1e-3, .frequencies = frequencies},
       .tied = true});
}

Transformer LlamaBiases(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 3,
                                  .kv_heads = 3,
                                  .layers = 1,
                                  .eps = 1e-3,
                                  .frequencies = Frequencies(100, 4)},
                            .qkv_bias = true,
                            .out_bias = true,
                            .mlp_bias = true});
}

Transformer Mistral(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 6,
                                  .kv_heads = 2,
                                  .layers = 2,
                                  .eps = 1e-3,
                                  .frequencies = Frequencies(1000, 2),
                                  .windows = {3, 3}}});
}

Transformer Qwen2(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 3,
                                  .kv_heads = 3,
                                  .layers = 3,
                                  .eps = 1e-3,
                                  .frequencies = Frequencies(1000, 4),
                                  .windows = {0, 4, 4}},
                            .qkv_bias = true,
                            .tied = true});
}

Transformer Qwen3(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 4,
                                  .kv_heads = 2,
                                  .layers = 2,
                                  .eps = 1e-3,
                                  .frequencies = Frequencies(1000, 6)},
                            .head_norms = true});
}

Transformer Qwen3Windows(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 4,
                                  .kv_heads = 1,
                                  .layers = 2,
                                  .eps = 1e-3,
                                  .frequencies = Frequencies(1000, 6),
                                  .windows = {3, 3}},
                            .head_norms = true});
}

Transformer Gemma(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 2,
                                  .kv_heads = 1,
                                  .layers = 2,
                                  .eps = 1e-3,
                                  .weight_offset = 1,
                                  .frequencies = Frequencies(1000, 8),
                                  .embedding_scale = std::sqrt(12.0),
                                  .activation = GeluTanh},
                            .tied = true});
}

Transformer Gemma2(Folder& folder) {
  const double scale = 1 / std::sqrt(5.0);
  return MakeLlama(folder, {.t = {.heads = 4,
                                  .kv_heads = 2,
                                  .layers = 3,
                                  .eps = 1e-3,
                                  .weight_offset = 1,
                                  .frequencies = Frequencies(1000, 8),
                                  .score_scales = {scale, scale, scale},
                                  .windows = {3, 0, 3},
                                  .score_cap = 2,
                                  .logit_cap = 3,
                                  .embedding_scale = std::sqrt(12.0),
                                  .activation = GeluTanh},
                            .tied = true,
                            .norms = {{"before_attention", "input_layernorm"},
                                      {"after_attention", "post_attention_layernorm"},
                                      {"before_mlp", "pre_feedforward_layernorm"},
                                      {"after_mlp", "post_feedforward_layernorm"}}});
}

// Without caps, and with the windows where the config says.
Transformer Gemma2Types(Folder& folder) {
  Reader r{folder, Gemma2(folder)};
  r.t.score_cap = r.t.logit_cap = 0;
  r.t.windows = {0, 4, 0};
  return r.t;
}

Transformer Olmo2(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 3,
                                  .kv_heads = 3,
                                  .layers = 2,
                                  .eps = 1e-3,
                                  .frequencies = Frequencies(1000, 4)},
                            .head_norms = true,
                            .norms = {{"after_attention", "post_attention_layernorm"},
                                      {"after_mlp", "post_feedforward_layernorm"}}});
}

Transformer Mixtral(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 3,
                                  .kv_heads = 1,
                                  .layers = 2,
                                  .eps = 1e-3,
                                  .frequencies = Frequencies(1000, 4),
                                  .windows = {3, 3},
                                  .top_k = 2,
                                  .normalise = true},
                            .experts = 4,
                            .mixture = "block_sparse_moe.",
                            .matrices = {"w1", "w3", "w2"}});
}

Transformer Qwen2Moe(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 3,
                                  .kv_heads = 3,
                                  .layers = 3,
                                  .eps = 1e-3,
                                  .frequencies = Frequencies(1000, 4),
                                  .top_k = 3},
                            .qkv_bias = true,
                            .experts = 5,
                            .shared = true,
                            .dense = {0, 2}});
}

Transformer Qwen3Moe(Folder& folder) {
  return MakeLlama(folder, {.t = {.heads = 4,
                                  .kv_heads = 2,
                                  .layers = 3,
                                  .eps = 1e-3,
                                  .frequencies = Frequencies(1000, 6),
                                  .top_k = 2,
                                  .normalise = true},
                            .head_norms = true,
                            .experts = 3,
                            .dense = {1}});
}

}  // namespace

std::vector<FamilyCase> LlamaCases() {
  const std::string theta = R"("rope_theta": 1000, )";
  return {
      {"llama", TinyConfig("llama", 2, 3, R"("num_key_value_heads": 1, "rope_theta": 100)"), Llama},
      {"llama31", TinyConfig("llama", 2, 4, R"("num_key_value_heads": 2, "head_dim": 10,
          "rope_parameters": {"rope_type": "llama3", "rope_theta": 100, "factor": 8.0,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32})"),
       Llama31},
      {"llama_linear", TinyConfig("llama", 2, 2, R"("rope_theta": 50, "tie_word_embeddings": true,
          "rope_scaling": {"type": "linear", "factor": 2.5})"),
       LlamaLinear},
      {"llama_biases", TinyConfig("llama", 1, 3, R"("rope_theta": 100, "attention_bias": true,
          "mlp_bias": true)"),
       LlamaBiases},
      {"mistral", TinyConfig("mistral", 2, 6, theta + R"("num_key_value_heads": 2,
          "sliding_window": 3)"),
       Mistral},
      {"qwen2", TinyConfig("qwen2", 3, 3, theta + R"("num_key_value_heads": 3,
          "tie_word_embeddings": true, "use_sliding_window": true, "sliding_window": 4,
          "max_window_layers": 1)"),
       Qwen2},
      {"qwen3", TinyConfig("qwen3", 2, 4, theta + R"("num_key_value_heads": 2, "head_dim": 6)"),
       Qwen3},
      {"qwen3_windows",
       TinyConfig("qwen3", 2, 4, theta + R"("num_key_value_heads": 1, "head_dim": 6,
          "use_sliding_window": true, "sliding_window": 3, "max_window_layers": 0)"),
       Qwen3Windows},
      {"mixtral", TinyConfig("mixtral", 2, 3, theta + R"("num_key_value_heads": 1,
          "num_local_experts": 4, "sliding_window": 3)"),
       Mixtral},
      {"qwen2_moe", TinyConfig("qwen2_moe", 3, 3, theta + R"("num_key_value_heads": 3,
          "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 7,
          "shared_expert_intermediate_size": 9, "decoder_sparse_step": 2)"),
       Qwen2Moe},
      {"qwen3_moe", TinyConfig("qwen3_moe", 3, 4, theta + R"("num_key_value_heads": 2,
          "head_dim": 6, "num_local_experts": 3, "num_experts_per_tok": 2,
          "moe_intermediate_size": 8, "norm_topk_prob": true, "mlp_only_layers": [1])"),
       Qwen3Moe},
      {"gemma2_types",
       TinyConfig("gemma2", 3, 4, theta + R"("num_key_value_heads": 2, "head_dim": 8,
          "sliding_window": 4, "query_pre_attn_scalar": 5, "attn_logit_softcapping": null,
          "final_logit_softcapping": null, "layer_types": ["full_attention", "sliding_attention",
          "full_attention"])"),
       Gemma2Types},
      {"gemma", TinyConfig("gemma", 2, 2, theta + R"("num_key_value_heads": 1, "head_dim": 8,
          "hidden_act": "gelu")"),
       Gemma},
      {"gemma2", TinyConfig("gemma2", 3, 4, theta + R"("num_key_value_heads": 2, "head_dim": 8,
          "sliding_window": 3, "query_pre_attn_scalar": 5, "attn_logit_softcapping": 2.0,
          "final_logit_softcapping": 3.0)"),
       Gemma2},
      {"olmo2", R"({"model_type": "olmo2", "vocab_size": 23, "hidden_size": 12,
          "intermediate_size": 20, "rms_norm_eps": 1e-3, "max_position_embeddings": 16,
          "pad_token_id": 5, "num_hidden_layers": 2, "num_attention_heads": 3,
          "rope_theta": 1000})",
       Olmo2, "model.embed_tokens.weight"}};
}

}  // namespace apogee::nn::families_test
