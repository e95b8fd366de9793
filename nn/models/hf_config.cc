// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/hf_config.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apogee/nn/models/hf_fields.h"

namespace apogee::nn {
namespace {

using internal::Concat;
using Json = nlohmann::ordered_json;

constexpr const char* kGpt2Architecture = "GPT2LMHeadModel";
constexpr const char* kLlamaArchitecture = "LlamaForCausalLM";
constexpr const char* kMistral = "mistral";
constexpr const char* kMistralArchitecture = "MistralForCausalLM";
constexpr int64_t kMaxLayers = 10'000;  // more is a mistake or an attack
constexpr HfRange kDropouts{.from = 0, .below = 1};
constexpr HfRange kEpsilons{.from = 0, .below = 1};

void CheckModel(HfFields& fields, const std::string& type, const std::string& architecture) {
  if (!fields.Has("model_type")) fields.Refuse("model_type", "must be \"" + type + "\"");
  fields.MustBe("model_type", type);
  fields.MustList("architectures", architecture);
  if (fields.Has("quantization_config")) {
    fields.Refuse("quantization_config", "only null works: the weights must be floating numbers");
  }
}

void Tell(const HfNotice& notice, const std::string& path, const std::string& text) {
  if (notice) return notice(path + ": " + text);
  std::fprintf(stderr, "%s: %s\n", path.c_str(), text.c_str());
}

// Gives a notice about a dropout of attention weights, which these models lack.
void TellAttentionDropout(HfFields& fields, const std::string& name, double missing,
                          const std::string& path, const HfNotice& notice) {
  const double rate = fields.Number(name, missing, kDropouts);
  if (rate == 0 || !fields.status().ok()) return;
  Tell(notice, path,
       Concat("\"", name, "\" is ", fields.Has(name) ? "" : "missing, so ", rate,
              " in the library; this model drops no attention weights: it computes the same, and "
              "trains without that dropout"));
}

void AddTokenIds(const TokenIds& token_ids, Json& json) {
  for (const auto& [name, ids] : token_ids) {
    if (ids.size() > 1) {
      json[name] = ids;
    } else {
      json[name] = ids.empty() ? Json() : Json(ids[0]);
    }
  }
}

int64_t Layers(HfFields& fields, const std::string& name, int64_t missing) {
  const int64_t layers = fields.Size(name, missing);
  if (layers > kMaxLayers) fields.Refuse(name, Concat("at most ", kMaxLayers, " work"));
  return layers;
}

// Accepts only plain rotary positions, under the field names of every version of the library.
void CheckRotary(HfFields& fields) {
  if (fields.Has("rope_scaling") && !fields.Has("rope_scaling.rope_type") &&
      !fields.Has("rope_scaling.type")) {
    fields.Refuse("rope_scaling", "only null works");
  }
  for (const char* name :
       {"rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type"}) {
    fields.MustBe(name, std::string("default"));
  }
  for (const char* name : {"partial_rotary_factor", "rope_parameters.partial_rotary_factor"}) {
    if (fields.Number(name, 1, {.from = 0, .below = 2}) != 1) fields.Refuse(name, "only 1 works");
  }
}

// The library's values for missing fields.
struct LlamaDefaults {
  int64_t intermediate_size, max_position_embeddings;
};
constexpr LlamaDefaults kLlamaDefaults = {11008, 2048}, kMistralDefaults = {14336, 131072};

// Refuses a sliding window that is shorter than max_position_embeddings.
void CheckWindow(HfFields& fields, int64_t positions) {
  fields.MustListOnly("layer_types", "full_attention");
  if (fields.HasNull("sliding_window")) return;
  constexpr int64_t kMissing = 4096;
  const int64_t window = fields.Size("sliding_window", kMissing);
  if (window >= positions) return;
  fields.Refuse("sliding_window",
                Concat("so attention is over ", window, " of max_position_embeddings, ", positions,
                       ": only a window of all positions, or null, works; for texts of up to ",
                       window, " tokens set max_position_embeddings to ", window));
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

absl::StatusOr<Gpt2Config> ParseGpt2HfConfig(const std::string& json, const std::string& path,
                                             const HfNotice& notice) {
  APOGEE_ASSIGN_OR_RETURN(HfFields fields, HfFields::Parse(json, path));
  CheckModel(fields, "gpt2", kGpt2Architecture);
  fields.AlsoAs("n_positions", "max_position_embeddings");
  fields.AlsoAs("n_embd", "hidden_size");
  fields.AlsoAs("n_layer", "num_hidden_layers");
  fields.AlsoAs("n_head", "num_attention_heads");
  Gpt2Config config;
  config.vocab_size = fields.Size("vocab_size", 50257);
  config.n_positions = fields.Size("n_positions", 1024);
  config.n_embd = fields.Size("n_embd", 768);
  config.n_layer = Layers(fields, "n_layer", 12);
  config.n_head = fields.Size("n_head", 12);
  if (config.n_embd % config.n_head != 0) {
    fields.Refuse("n_embd", Concat("must be a multiple of n_head, ", config.n_head));
  }
  fields.MustBe("n_inner", 4 * config.n_embd);
  fields.MustBe("activation_function", std::string("gelu_new"));
  config.dropout = fields.Number("resid_pdrop", 0.1, kDropouts);
  const double after_embedding = fields.Number("embd_pdrop", 0.1, kDropouts);
  config.layer_norm_epsilon = fields.Number("layer_norm_epsilon", 1e-5, kEpsilons);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", true);
  fields.MustBe("scale_attn_weights", true);
  fields.MustBe("scale_attn_by_inverse_layer_idx", false);
  fields.MustBe("add_cross_attention", false);
  config.token_ids = fields.ReadTokenIds();
  TellAttentionDropout(fields, "attn_pdrop", 0.1, path, notice);
  if (!fields.status().ok()) return fields.status();
  if (after_embedding != config.dropout) {
    Tell(notice, path,
         Concat("\"embd_pdrop\" is ", after_embedding, ", and \"resid_pdrop\" ", config.dropout,
                "; this model has one dropout for both, which is ", config.dropout));
  }
  return config;
}

absl::StatusOr<LlamaConfig> ParseLlamaHfConfig(const std::string& json, const std::string& path,
                                               const HfNotice& notice) {
  APOGEE_ASSIGN_OR_RETURN(HfFields fields, HfFields::Parse(json, path));
  const bool is_mistral = fields.Is("model_type", kMistral);
  const LlamaDefaults& missing = is_mistral ? kMistralDefaults : kLlamaDefaults;
  if (is_mistral) {
    CheckModel(fields, kMistral, kMistralArchitecture);
  } else {
    CheckModel(fields, "llama", kLlamaArchitecture);
  }
  LlamaConfig config;
  config.vocab_size = fields.Size("vocab_size", 32000);
  config.hidden_size = fields.Size("hidden_size", 4096);
  config.intermediate_size = fields.Size("intermediate_size", missing.intermediate_size);
  config.num_hidden_layers = Layers(fields, "num_hidden_layers", 32);
  config.num_attention_heads = fields.Size("num_attention_heads", 32);
  const bool as_many = !is_mistral || fields.HasNull("num_key_value_heads");
  config.num_key_value_heads =
      fields.Size("num_key_value_heads", as_many ? config.num_attention_heads : 8);
  if (config.hidden_size % (2 * config.num_attention_heads) != 0) {
    fields.Refuse("hidden_size", Concat("must be an even multiple of num_attention_heads, ",
                                        config.num_attention_heads));
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.Refuse("num_key_value_heads",
                  Concat("must divide num_attention_heads, ", config.num_attention_heads));
  }
  fields.MustBe("head_dim", config.hidden_size / config.num_attention_heads);
  config.max_position_embeddings =
      fields.Size("max_position_embeddings", missing.max_position_embeddings);
  if (is_mistral) CheckWindow(fields, config.max_position_embeddings);
  fields.MustBe("hidden_act", std::string("silu"));
  config.rms_norm_eps = fields.Number("rms_norm_eps", 1e-6, kEpsilons);
  constexpr HfRange kThetas{.from = 1, .below = 1e15};
  const double theta = fields.Number("rope_parameters.rope_theta", 10000, kThetas);
  config.rope_theta = fields.Number("rope_theta", theta, kThetas);
  // Versions of the library disagree on which of the two counts.
  if (fields.Has("rope_parameters.rope_theta") && config.rope_theta != theta) {
    fields.Refuse("rope_theta", Concat("must be rope_parameters.rope_theta, ", theta));
  }
  CheckRotary(fields);
  fields.MustBe("attention_bias", false);
  fields.MustBe("mlp_bias", false);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", false);
  config.token_ids = fields.ReadTokenIds();
  TellAttentionDropout(fields, "attention_dropout", 0, path, notice);
  if (!fields.status().ok()) return fields.status();
  return config;
}

}  // namespace apogee::nn
