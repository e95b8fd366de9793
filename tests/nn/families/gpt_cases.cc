// SPDX-License-Identifier: Apache-2.0

// Families with names and layers of their own: Phi-3, GPT-NeoX, OPT, GPT-2.
#include "apogee/tests/nn/families/folder_reader.h"

namespace apogee::nn::families_test {
namespace {

// Fused layers: the rows of all q, then k, then v; those of the gate, then up.
Transformer Phi3(Folder& folder) {
  constexpr size_t kHeads = 3, kKvHeads = 1, kDim = 4;
  Reader r{folder,
           {.hidden = kHidden,
            .heads = kHeads,
            .kv_heads = kKvHeads,
            .layers = 2,
            .eps = 1e-3,
            .frequencies = Frequencies(1000, kDim / 2),  // half of a head turns
            .windows = {5, 5}}};
  r.Linear("embed", "model.embed_tokens");
  for (size_t i = 0; i < r.t.layers; ++i) {
    const std::string at = std::to_string(i) + ".", from = "model.layers." + at;
    r.Norm(at + "before_attention", from + "input_layernorm");
    r.Norm(at + "before_mlp", from + "post_attention_layernorm");
    const Row& qkv = folder.Take(from + "self_attn.qkv_proj.weight");
    const size_t k = kHeads * kDim, v = k + kKvHeads * kDim, end = v + kKvHeads * kDim;
    r.Rows(at + "q", qkv, 0, k, kHidden);
    r.Rows(at + "k", qkv, k, v, kHidden);
    r.Rows(at + "v", qkv, v, end, kHidden);
    r.Linear(at + "o", from + "self_attn.o_proj");
    const Row& gate_up = folder.Take(from + "mlp.gate_up_proj.weight");
    r.Rows(at + "gate", gate_up, 0, kInner, kHidden);
    r.Rows(at + "up", gate_up, kInner, 2 * kInner, kHidden);
    r.Linear(at + "down", from + "mlp.down_proj");
  }
  r.Norm("norm", "model.norm");
  r.Linear("head", "lm_head");
  return r.t;
}

// One layer has q, k and v of the first head, then of the second, and so on.
Transformer MakeGptNeoX(Folder& folder, bool parallel) {
  constexpr size_t kHeads = 3, kDim = 4;
  Reader r{folder,
           {.hidden = kHidden,
            .heads = kHeads,
            .kv_heads = kHeads,
            .layers = 2,
            .layer_norm = true,
            .parallel = parallel,
            .eps = 1e-3,
            .frequencies = Frequencies(1000, kDim / 2),
            .activation = Gelu}};
  r.Linear("embed", "gpt_neox.embed_in");
  for (size_t i = 0; i < r.t.layers; ++i) {
    const std::string at = std::to_string(i) + ".", from = "gpt_neox.layers." + at;
    r.Norm(at + "before_attention", from + "input_layernorm");
    r.Norm(at + "before_mlp", from + "post_attention_layernorm");
    const Row& qkv = folder.Take(from + "attention.query_key_value.weight");
    const Row& bias = folder.Take(from + "attention.query_key_value.bias");
    for (size_t part = 0; part < 3 * kHeads; ++part) {
      const std::string to = at + std::string(1, "qkv"[part % 3]);
      r.Rows(to, qkv, part * kDim, (part + 1) * kDim, kHidden);
      r.Rows(to + ".bias", bias, part * kDim, (part + 1) * kDim, 1);
    }
    r.Linear(at + "o", from + "attention.dense", true);
    r.Linear(at + "up", from + "mlp.dense_h_to_4h", true);
    r.Linear(at + "down", from + "mlp.dense_4h_to_h", true);
  }
  r.Norm("norm", "gpt_neox.final_layer_norm");
  r.Linear("head", "embed_out");
  return r.t;
}

Transformer GptNeoX(Folder& folder) { return MakeGptNeoX(folder, true); }
Transformer GptNeoXSerial(Folder& folder) { return MakeGptNeoX(folder, false); }

// The table of positions has two rows in front that no position reads.
Transformer MakeOpt(Folder& folder, bool norms_before, bool projected) {
  Reader r{folder,
           {.hidden = kHidden,
            .heads = 3,
            .kv_heads = 3,
            .layers = 2,
            .layer_norm = true,
            .eps = 1e-5,
            .activation = Relu}};
  const std::string root = "model.decoder.", order = norms_before ? "before_" : "after_add_";
  r.Linear("embed", root + "embed_tokens");
  r.Rows("positions", folder.Take(root + "embed_positions.weight"), 2, kPositions + 2, kHidden);
  for (size_t i = 0; i < r.t.layers; ++i) {
    const std::string at = std::to_string(i) + ".", from = root + "layers." + at;
    r.Norm(at + order + "attention", from + "self_attn_layer_norm");
    r.Norm(at + order + "mlp", from + "final_layer_norm");
    for (const std::string name : {"q", "k", "v"}) {
      r.Linear(at + name, from + "self_attn." + name + "_proj", true);
    }
    r.Linear(at + "o", from + "self_attn.out_proj", true);
    r.Linear(at + "up", from + "fc1", true);
    r.Linear(at + "down", from + "fc2", true);
  }
  if (norms_before) r.Norm("norm", root + "final_layer_norm");
  if (projected) {
    r.Linear("project_in", root + "project_in");
    r.Linear("project_out", root + "project_out");
  }
  r.Linear("head", root + "embed_tokens");
  return r.t;
}

Transformer Opt(Folder& folder) { return MakeOpt(folder, true, false); }
Transformer OptAfter(Folder& folder) { return MakeOpt(folder, false, true); }

Transformer Gpt2(Folder& folder) {
  Reader r{folder,
           {.hidden = kHidden,
            .heads = 3,
            .kv_heads = 3,
            .layers = 2,
            .layer_norm = true,
            .eps = 1e-3,
            .score_scales = {1 / std::sqrt(4.0), 1 / std::sqrt(4.0) / 2},  // by the layer's number
            .activation = GeluTanh}};
  r.Linear("embed", "transformer.wte");
  r.Linear("positions", "transformer.wpe");
  for (size_t i = 0; i < r.t.layers; ++i) {
    const std::string at = std::to_string(i) + ".", from = "transformer.h." + at;
    r.Norm(at + "before_attention", from + "ln_1");
    r.Norm(at + "before_mlp", from + "ln_2");
    const Row qkv = r.Transposed(from + "attn.c_attn.weight", kHidden);
    const Row& bias = folder.Take(from + "attn.c_attn.bias");
    for (size_t part = 0; part < 3; ++part) {
      const std::string to = at + std::string(1, "qkv"[part]);
      r.Rows(to, qkv, part * kHidden, (part + 1) * kHidden, kHidden);
      r.Rows(to + ".bias", bias, part * kHidden, (part + 1) * kHidden, 1);
    }
    r.t.weights[at + "o"] = r.Transposed(from + "attn.c_proj.weight", kHidden);
    r.t.weights[at + "o.bias"] = folder.Take(from + "attn.c_proj.bias");
    r.t.weights[at + "up"] = r.Transposed(from + "mlp.c_fc.weight", kHidden);
    r.t.weights[at + "up.bias"] = folder.Take(from + "mlp.c_fc.bias");
    r.t.weights[at + "down"] = r.Transposed(from + "mlp.c_proj.weight", kInner);
    r.t.weights[at + "down.bias"] = folder.Take(from + "mlp.c_proj.bias");
  }
  r.Norm("norm", "transformer.ln_f");
  r.Linear("head", "transformer.wte");
  return r.t;
}

}  // namespace

std::vector<FamilyCase> GptCases() {
  const std::string theta = R"("rope_theta": 1000, )";
  return {
      {"phi3", TinyConfig("phi3", 2, 3, theta + R"("num_key_value_heads": 1, "sliding_window": 5,
          "partial_rotary_factor": 0.5)"),
       Phi3},
      {"gpt_neox", TinyConfig("gpt_neox", 2, 3, R"("layer_norm_eps": 1e-3, "rotary_pct": 0.5,
          "rotary_emb_base": 1000)"),
       GptNeoX},
      {"gpt_neox_serial", TinyConfig("gpt_neox", 2, 3, R"("layer_norm_eps": 1e-3,
          "rope_parameters": {"rope_type": "default", "rope_theta": 1000,
          "partial_rotary_factor": 0.5}, "use_parallel_residual": false)"),
       GptNeoXSerial},
      {"opt", TinyConfig("opt", 2, 3, R"("ffn_dim": 20, "dropout": 0.0)"), Opt},
      {"opt_after", TinyConfig("opt", 2, 3, R"("ffn_dim": 20, "dropout": 0.0,
          "do_layer_norm_before": false, "word_embed_proj_dim": 10)"),
       OptAfter},
      {"gpt2", R"({"model_type": "gpt2", "vocab_size": 23, "n_embd": 12, "n_inner": 20,
          "n_layer": 2, "n_head": 3, "n_positions": 16, "layer_norm_epsilon": 1e-3,
          "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
          "scale_attn_by_inverse_layer_idx": true})",
       Gpt2}};
}

}  // namespace apogee::nn::families_test
