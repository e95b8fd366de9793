// SPDX-License-Identifier: Apache-2.0

// Gemma (2024) and Gemma 2 (2024): norms whose files hold the weight minus one, scaled embeddings,
// gated GELU. Gemma 2 adds soft caps, norms behind the branches, and windows in every second layer.
#include <cmath>

#include "apogee/nn/models/families/families.h"

namespace apogee::nn {
namespace {

constexpr FamilyDefaults kGemma{.vocab_size = 256000,
                                .hidden_size = 3072,
                                .intermediate_size = 24576,
                                .layers = 28,
                                .heads = 16,
                                .kv_heads = 16,
                                .head_dim = 256,
                                .max_tokens = 8192,
                                .tied = true,
                                .pad = 0};
constexpr FamilyDefaults kGemma2{.vocab_size = 256000,
                                 .hidden_size = 2304,
                                 .intermediate_size = 9216,
                                 .layers = 26,
                                 .heads = 8,
                                 .kv_heads = 4,
                                 .head_dim = 256,
                                 .max_tokens = 8192,
                                 .tied = true,
                                 .pad = 0};
constexpr HfRange kPositive{.from = 1e-6, .below = 1e9};
constexpr const char* kGelu = "gelu_pytorch_tanh";

DecoderConfig CommonOfGemma(FamilyFields& f, const FamilyDefaults& defaults) {
  DecoderConfig config = f.Sizes(defaults);
  BlockConfig& block = config.block;
  f.Rope(defaults, config);
  block.norm_weight_offset = 1;
  config.embedding_scale = std::sqrt(static_cast<double>(block.hidden_size));
  block.qkv_bias = block.out_bias = f.fields.Flag("attention_bias", false);
  f.TellDropout("attention_dropout", 0, "attention weights");
  if (f.fields.Has("use_bidirectional_attention")) {
    f.fields.MustBe("use_bidirectional_attention", false);
  }
  return config;
}

// A soft cap: null turns it off.
double ReadCap(FamilyFields& f, const std::string& name, double missing) {
  return f.fields.Number(name, f.fields.HasNull(name) ? 0 : missing, kPositive);
}

}  // namespace

DecoderConfig ReadGemma(FamilyFields& f) {
  DecoderConfig config = CommonOfGemma(f, kGemma);
  config.model_type = "gemma";
  // The first files say "gelu" and mean the tanh form, as the library computes them.
  const bool given = f.fields.Has("hidden_activation");
  const bool old = !given && f.fields.Is("hidden_act", "gelu");
  config.block.activation =
      old ? Activation::kGeluTanh
          : f.ReadActivation(given ? "hidden_activation" : "hidden_act", kGelu, true);
  f.fields.Has("hidden_act");
  return config;
}

DecoderConfig ReadGemma2(FamilyFields& f) {
  DecoderConfig config = CommonOfGemma(f, kGemma2);
  config.model_type = "gemma2";
  BlockConfig& block = config.block;
  block.activation = f.ReadActivation("hidden_activation", kGelu, true);
  f.fields.Has("hidden_act");  // the library does not read it
  block.names.attention_norms = {
      .before = "input_layernorm", .after = "post_attention_layernorm", .after_add = {}};
  block.names.mlp_norms = {.before = "pre_feedforward_layernorm",
                           .after = "post_feedforward_layernorm",
                           .after_add = {}};
  block.attention_scale = 1 / std::sqrt(f.fields.Number("query_pre_attn_scalar", 256, kPositive));
  block.attention_soft_cap = ReadCap(f, "attn_logit_softcapping", 50);
  config.logits_soft_cap = ReadCap(f, "final_logit_softcapping", 30);
  const int64_t missing = f.fields.HasNull("sliding_window") ? 0 : 4096;
  const int64_t window = f.fields.Size("sliding_window", missing);
  f.Windows(
      window, [](int64_t layer) { return layer % 2 == 0; }, config);
  return config;
}

}  // namespace apogee::nn
