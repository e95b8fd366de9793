// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_families.h"

#include <algorithm>
#include <utility>

namespace apogee::checkpoint {
namespace {

// Whether `name` is `pattern`, where each # stands for a whole number.
bool Fits(const std::string& name, const std::string& pattern) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t at = 0;
  for (const char expected : pattern) {
    if (at == name.size()) return false;
    if (expected != '#') {
      if (name[at++] != expected) return false;
      continue;
    }
    if (!is_digit(name[at])) return false;
    while (at < name.size() && is_digit(name[at])) ++at;
  }
  return at == name.size();
}

}  // namespace

const std::vector<HfFamily>& HfFamilies() {
  static const auto& families = *new std::vector<HfFamily>{
      // GPT-2
      {.prefix = "transformer.",
       .unused = {"h.#.attn.bias", "h.#.attn.masked_bias"},
       .ties = {{"lm_head.weight", "transformer.wte.weight"}}},
      // Llama, Mistral, Qwen, Gemma, Phi-3, OLMo 2
      {.prefix = "model.", .ties = {{"lm_head.weight", "model.embed_tokens.weight"}}},
      // OPT, saved with the decoder's parent (as above) or from the decoder
      {.prefix = "model.decoder.",
       .unused = {"version", "decoder.version"},
       .ties = {{"lm_head.weight", "model.decoder.embed_tokens.weight"}}},
      // GPT-NeoX
      {.prefix = "gpt_neox.",
       .unused = {"layers.#.attention.bias", "layers.#.attention.masked_bias"},
       .ties = {{"embed_out.weight", "gpt_neox.embed_in.weight"}}},
      {.prefix = "bert.",
       .unused = {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias",
                  "cls.seq_relationship.weight", "cls.seq_relationship.bias"},
       .ties = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
                {"cls.predictions.decoder.bias", "cls.predictions.bias"}}},
      {.prefix = "vit.", .unused = {"pooler.dense.weight", "pooler.dense.bias"}},
  };
  return families;
}

bool HfFamily::IsUnused(const std::string& name) const {
  const std::string bare = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  return std::ranges::any_of(unused, [&](const std::string& pattern) {
    return Fits(bare, pattern) || Fits(name, pattern);
  });
}

bool IsRotaryFrequency(const std::string& name) {
  const std::string last = "rotary_emb.inv_freq";
  return name == last || name.ends_with("." + last);
}

std::string OldHfName(const std::string& name) {
  for (const auto& [now, before] : {std::pair<std::string, std::string>{"weight", "gamma"},
                                    std::pair<std::string, std::string>{"bias", "beta"}}) {
    if (!name.ends_with("LayerNorm." + now)) continue;
    return name.substr(0, name.size() - now.size()) + before;
  }
  return "";
}

}  // namespace apogee::checkpoint
