// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/families/encoders.h"

namespace apogee::nn {
namespace {

constexpr FamilyDefaults kBertDefaults{.vocab_size = 30522,
                                       .hidden_size = 768,
                                       .intermediate_size = 3072,
                                       .layers = 12,
                                       .heads = 12,
                                       .max_tokens = 512,
                                       .norm_eps = 1e-12,
                                       .tied = true,
                                       .pad = 0,
                                       .names = {.norm_eps = "layer_norm_eps"}};
constexpr FamilyDefaults kVitDefaults{.hidden_size = 768,
                                      .intermediate_size = 3072,
                                      .layers = 12,
                                      .heads = 12,
                                      .norm_eps = 1e-12,
                                      .names = {.norm_eps = "layer_norm_eps"}};

// The sizes and the settings that both have, over `block`.
BlockConfig CommonOfEncoder(FamilyFields& f, const DecoderConfig& sizes, double dropout,
                            BlockConfig block) {
  block.hidden_size = sizes.block.hidden_size;
  block.intermediate_size = sizes.block.intermediate_size;
  block.num_heads = block.num_kv_heads = sizes.block.num_heads;
  block.head_dim = sizes.block.head_dim;
  block.norm_eps = sizes.block.norm_eps;
  block.activation = f.ReadActivation("hidden_act", "gelu", false);
  block.dropout = f.Dropout("hidden_dropout_prob", dropout);
  f.TellDropout("attention_probs_dropout_prob", dropout, "attention weights");
  f.fields.MustBe("num_key_value_heads", block.num_heads);
  return block;
}

}  // namespace

BertConfig ReadBert(FamilyFields& f) {
  const DecoderConfig sizes = f.Sizes(kBertDefaults);
  BertConfig config{.vocab_size = sizes.vocab_size,
                    .num_layers = sizes.num_layers,
                    .max_tokens = sizes.max_tokens,
                    .type_vocab_size = f.fields.Size("type_vocab_size", 2),
                    .block = CommonOfEncoder(f, sizes, 0.1, BertBlock()),
                    .padding_id = sizes.padding_id};
  f.fields.MustBe("tie_word_embeddings", true);
  f.fields.MustBe("position_embedding_type", std::string("absolute"));
  f.fields.MustBe("is_decoder", false);
  f.fields.MustBe("add_cross_attention", false);
  return config;
}

VitConfig ReadVit(FamilyFields& f) {
  const DecoderConfig sizes = f.Sizes(kVitDefaults);
  VitConfig config{.image_size = f.fields.Size("image_size", 224),
                   .patch_size = f.fields.Size("patch_size", 16),
                   .num_channels = f.fields.Size("num_channels", 3),
                   .num_layers = sizes.num_layers,
                   .block = CommonOfEncoder(f, sizes, 0, VitBlock())};
  config.block.qkv_bias = f.fields.Flag("qkv_bias", true);
  const int64_t labels = f.fields.CountKeys("id2label");
  config.num_labels = labels > 0 ? labels : f.fields.Size("num_labels", 2);
  if (config.image_size % config.patch_size != 0) {
    f.fields.Refuse("image_size",
                    internal::Concat("must be a multiple of patch_size, ", config.patch_size));
  }
  return config;
}

}  // namespace apogee::nn
