// SPDX-License-Identifier: Apache-2.0

// GPT-2 (Radford et al., 2019), GPT-NeoX (Black et al., 2022) and OPT (Zhang et al., 2022): layer
// norms, biases, MLPs without a gate.
#include <cmath>

#include "apogee/nn/models/families/families.h"
#include "apogee/nn/models/gpt2.h"

namespace apogee::nn {
namespace {

using internal::Concat;

constexpr FamilyDefaults kGptNeoX{.vocab_size = 50432,
                                  .hidden_size = 6144,
                                  .intermediate_size = 24576,
                                  .layers = 44,
                                  .heads = 64,
                                  .max_tokens = 2048,
                                  .norm_eps = 1e-5,
                                  .rotary_fraction = 0.25,
                                  .names = {.norm_eps = "layer_norm_eps"}};
constexpr FamilyDefaults kOpt{.vocab_size = 50272,
                              .hidden_size = 768,
                              .intermediate_size = 3072,
                              .layers = 12,
                              .heads = 12,
                              .max_tokens = 2048,
                              .tied = true,
                              .pad = 1,
                              .names = {.intermediate_size = "ffn_dim"}};
constexpr FamilyDefaults kGpt2{.vocab_size = 50257,
                               .hidden_size = 768,
                               .layers = 12,
                               .heads = 12,
                               .max_tokens = 1024,
                               .norm_eps = 1e-5,
                               .tied = true,
                               .names = {.hidden_size = "n_embd",
                                         .intermediate_size = "n_inner",
                                         .layers = "n_layer",
                                         .heads = "n_head",
                                         .max_tokens = "n_positions",
                                         .norm_eps = "layer_norm_epsilon"}};

// The dropouts behind the embeddings and at the ends of branches are one setting here.
void ReadDropouts(FamilyFields& f, const char* branches, const char* embeddings, double missing,
                  BlockConfig& block) {
  block.has_dropout = true;
  block.dropout = f.Dropout(branches, missing);
  const double other = f.Dropout(embeddings, missing);
  if (other == block.dropout || !f.fields.status().ok()) return;
  f.Tell(Concat("\"", embeddings, "\" is ", other, ", and \"", branches, "\" ", block.dropout,
                "; this model has one dropout for both, which is ", block.dropout));
}

}  // namespace

DecoderConfig ReadGpt2(FamilyFields& f) {
  // The library takes the names that other models have, too.
  f.fields.AlsoAs("n_positions", "max_position_embeddings");
  f.fields.AlsoAs("n_embd", "hidden_size");
  f.fields.AlsoAs("n_layer", "num_hidden_layers");
  f.fields.AlsoAs("n_head", "num_attention_heads");
  const DecoderConfig sizes = f.Sizes(kGpt2);
  if (!f.fields.status().ok()) return sizes;
  DecoderConfig config =
      DecoderConfigOf(Gpt2Config{.vocab_size = sizes.vocab_size,
                                 .n_positions = sizes.max_tokens,
                                 .n_embd = sizes.block.hidden_size,
                                 .n_layer = sizes.num_layers,
                                 .n_head = sizes.block.num_heads,
                                 .layer_norm_epsilon = sizes.block.norm_eps,
                                 .tie_word_embeddings = sizes.tie_word_embeddings,
                                 .token_ids = sizes.token_ids});
  BlockConfig& block = config.block;
  block.intermediate_size = sizes.block.intermediate_size;
  block.activation = f.ReadActivation("activation_function", "gelu_new", false);
  ReadDropouts(f, "resid_pdrop", "embd_pdrop", 0.1, block);
  f.TellDropout("attn_pdrop", 0.1, "attention weights");
  const double scale = f.fields.Flag("scale_attn_weights", true)
                           ? 1 / std::sqrt(static_cast<double>(block.head_dim))
                           : 1;
  if (!f.fields.Flag("scale_attn_weights", true)) block.attention_scale = scale;
  if (f.fields.Flag("scale_attn_by_inverse_layer_idx", false)) {
    for (int64_t i = 0; i < config.num_layers; ++i) {
      config.attention_scales.push_back(scale / static_cast<double>(i + 1));
    }
  }
  f.fields.MustBe("add_cross_attention", false);
  return config;
}

DecoderConfig ReadGptNeoX(FamilyFields& f) {
  f.fields.AlsoAs("partial_rotary_factor", "rotary_pct");
  f.fields.AlsoAs("rope_theta", "rotary_emb_base");
  DecoderConfig config = f.Sizes(kGptNeoX);
  config.model_type = "gpt_neox";
  config.padding_id = -1;  // the library's model has none
  BlockConfig& block = config.block;
  f.Rope(kGptNeoX, config);
  block.norm = NormKind::kLayerNorm;
  block.parallel_residual = f.fields.Flag("use_parallel_residual", true);
  block.qkv_layout = QkvLayout::kByHead;
  block.qkv_bias = block.out_bias = f.fields.Flag("attention_bias", true);
  block.mlp_bias = true;
  block.gated_mlp = false;
  block.activation = f.ReadActivation("hidden_act", "gelu", false);
  block.dropout = f.Dropout("hidden_dropout", 0);
  block.has_dropout = block.dropout > 0;
  f.TellDropout("attention_dropout", 0, "attention weights");
  block.names.attention = "attention";
  block.names.qkv = "attention.query_key_value";
  block.names.out = "attention.dense";
  block.names.core = "attention.core";
  block.names.up = "mlp.dense_h_to_4h";
  block.names.down = "mlp.dense_4h_to_h";
  config.names = {.tokens = "gpt_neox.embed_in",
                  .dropout = block.has_dropout ? "gpt_neox.emb_dropout" : "",
                  .layers = "gpt_neox.layers",
                  .norm = "gpt_neox.final_layer_norm",
                  .head = "embed_out"};
  return config;
}

DecoderConfig ReadOpt(FamilyFields& f) {
  DecoderConfig config = f.Sizes(kOpt);
  config.model_type = "opt";
  BlockConfig& block = config.block;
  const std::string root = "model.decoder.";
  const bool before = f.fields.Flag("do_layer_norm_before", true);
  config.embedding_size = f.fields.Size("word_embed_proj_dim", block.hidden_size);
  config.first_position_row = 2;
  block.norm = NormKind::kLayerNorm;
  block.norm_eps = 1e-5;
  block.has_rotary = false;
  block.qkv_bias = block.out_bias = block.mlp_bias = f.fields.Flag("enable_bias", true);
  block.gated_mlp = false;
  block.activation = f.ReadActivation("activation_function", "relu", false);
  block.has_dropout = true;
  block.dropout = f.Dropout("dropout", 0.1);
  f.TellDropout("attention_dropout", 0, "attention weights");
  f.TellDropout("activation_dropout", 0, "activations");
  f.TellDropout("layerdrop", 0, "layers");
  f.fields.MustBe("layer_norm_elementwise_affine", true);
  const auto norms = [before](const char* name) {
    return before ? BranchNorms{.before = name, .after = {}, .after_add = {}}
                  : BranchNorms{.before = {}, .after = {}, .after_add = name};
  };
  block.names.attention_norms = norms("self_attn_layer_norm");
  block.names.mlp_norms = norms("final_layer_norm");
  block.names.out = "self_attn.out_proj";
  block.names.mlp = "";
  block.names.up = "fc1";
  block.names.down = "fc2";
  const bool has_norm = !f.fields.Flag("_remove_final_layer_norm", false) && before;
  const bool projected = config.embedding_size != block.hidden_size;
  config.names = {.tokens = root + "embed_tokens",
                  .positions = root + "embed_positions",
                  .layers = root + "layers",
                  .norm = has_norm ? root + "final_layer_norm" : "",
                  .head = "lm_head",
                  .project_in = projected ? root + "project_in" : "",
                  .project_out = projected ? root + "project_out" : ""};
  return config;
}

}  // namespace apogee::nn
