// SPDX-License-Identifier: Apache-2.0

#include "apogee/tests/nn/families/folder_reader.h"

namespace apogee::nn::families_test {

Transformer MakeBert(Folder& folder) {
  Reader r{folder,
           {.hidden = kHidden,
            .heads = 3,
            .kv_heads = 3,
            .layers = 2,
            .layer_norm = true,
            .causal = false,
            .eps = 1e-3,
            .activation = Gelu}};
  const std::string root = "bert.embeddings.";
  r.Linear("embed", root + "word_embeddings");
  r.Linear("positions", root + "position_embeddings");
  r.Linear("types", root + "token_type_embeddings");
  r.Norm("embed_norm", root + "LayerNorm");
  for (size_t i = 0; i < r.t.layers; ++i) {
    const std::string at = std::to_string(i) + ".", from = "bert.encoder.layer." + at;
    r.Linear(at + "q", from + "attention.self.query", true);
    r.Linear(at + "k", from + "attention.self.key", true);
    r.Linear(at + "v", from + "attention.self.value", true);
    r.Linear(at + "o", from + "attention.output.dense", true);
    r.Norm(at + "after_add_attention", from + "attention.output.LayerNorm");
    r.Linear(at + "up", from + "intermediate.dense", true);
    r.Linear(at + "down", from + "output.dense", true);
    r.Norm(at + "after_add_mlp", from + "output.LayerNorm");
  }
  r.Linear("transform", "cls.predictions.transform.dense", true);
  r.Norm("transform_norm", "cls.predictions.transform.LayerNorm");
  r.Linear("head", root + "word_embeddings");
  r.t.weights["head.bias"] = folder.Take("cls.predictions.bias");
  return r.t;
}

Transformer MakeVit(Folder& folder) {
  Reader r{folder,
           {.hidden = kHidden,
            .heads = 3,
            .kv_heads = 3,
            .layers = 2,
            .layer_norm = true,
            .causal = false,
            .eps = 1e-3,
            .activation = Gelu}};
  r.t.weights["class"] = folder.Take("vit.embeddings.cls_token");
  r.t.weights["positions"] = folder.Take("vit.embeddings.position_embeddings");
  r.Linear("patch", "vit.embeddings.patch_embeddings.projection", true);
  for (size_t i = 0; i < r.t.layers; ++i) {
    const std::string at = std::to_string(i) + ".", from = "vit.encoder.layer." + at;
    r.Norm(at + "before_attention", from + "layernorm_before");
    r.Norm(at + "before_mlp", from + "layernorm_after");
    r.Linear(at + "q", from + "attention.attention.query", true);
    r.Linear(at + "k", from + "attention.attention.key", true);
    r.Linear(at + "v", from + "attention.attention.value", true);
    r.Linear(at + "o", from + "attention.output.dense", true);
    r.Linear(at + "up", from + "intermediate.dense", true);
    r.Linear(at + "down", from + "output.dense", true);
  }
  r.Norm("norm", "vit.layernorm");
  r.Linear("head", "classifier", true);
  return r.t;
}

}  // namespace apogee::nn::families_test
