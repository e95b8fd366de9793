#include "apogee/nn/models/hf_config.h"

#include <nlohmann/json.hpp>

#include "apogee/nn/models/hf_fields.h"

namespace apogee::nn {
namespace {

using internal::Concat;
using Json = nlohmann::ordered_json;

constexpr const char* kGpt2Architecture = "GPT2LMHeadModel";
constexpr const char* kLlamaArchitecture = "LlamaForCausalLM";
constexpr int64_t kMaxLayers = 10'000;  // a model of more is a mistake, or an attack
constexpr HfRange kDropouts{.from = 0, .below = 1};
constexpr HfRange kEpsilons{.from = 0, .below = 1};

void CheckModelType(HfFields& fields, const std::string& type) {
  if (!fields.Has("model_type")) fields.Refuse("model_type", "must be \"" + type + "\"");
  fields.MustBe("model_type", type);
}

int64_t Layers(HfFields& fields, const std::string& name, int64_t missing) {
  const int64_t layers = fields.Size(name, missing);
  if (layers > kMaxLayers) fields.Refuse(name, Concat("at most ", kMaxLayers, " work"));
  return layers;
}

// Plain rotary positions, under the names of any version of the library.
void CheckRotary(HfFields& fields) {
  if (fields.Has("rope_scaling") && !fields.Has("rope_scaling.rope_type") &&
      !fields.Has("rope_scaling.type")) {
    fields.Refuse("rope_scaling", "only null works");
  }
  for (const char* name :
       {"rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type"}) {
    fields.MustBe(name, std::string("default"));
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
  // Else the library takes those of its own vocabulary, which this model need not have.
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
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
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  return json.dump(2) + "\n";
}

absl::StatusOr<Gpt2Config> ParseGpt2HfConfig(const std::string& json, const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(HfFields fields, HfFields::Parse(json, path));
  CheckModelType(fields, "gpt2");
  fields.MustNameArchitecture(kGpt2Architecture);
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
  if (fields.Number("embd_pdrop", 0.1, kDropouts) != config.dropout) {
    fields.Refuse("embd_pdrop", Concat("must be resid_pdrop, ", config.dropout));
  }
  fields.Number("attn_pdrop", 0.1, kDropouts);
  config.layer_norm_epsilon = fields.Number("layer_norm_epsilon", 1e-5, kEpsilons);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", true);
  fields.MustBe("scale_attn_weights", true);
  fields.MustBe("scale_attn_by_inverse_layer_idx", false);
  fields.MustBe("add_cross_attention", false);
  if (!fields.status().ok()) return fields.status();
  return config;
}

absl::StatusOr<LlamaConfig> ParseLlamaHfConfig(const std::string& json, const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(HfFields fields, HfFields::Parse(json, path));
  CheckModelType(fields, "llama");
  fields.MustNameArchitecture(kLlamaArchitecture);
  LlamaConfig config;
  config.vocab_size = fields.Size("vocab_size", 32000);
  config.hidden_size = fields.Size("hidden_size", 4096);
  config.intermediate_size = fields.Size("intermediate_size", 11008);
  config.num_hidden_layers = Layers(fields, "num_hidden_layers", 32);
  config.num_attention_heads = fields.Size("num_attention_heads", 32);
  config.num_key_value_heads = fields.Size("num_key_value_heads", config.num_attention_heads);
  if (config.hidden_size % (2 * config.num_attention_heads) != 0) {
    fields.Refuse("hidden_size", Concat("must be an even multiple of num_attention_heads, ",
                                        config.num_attention_heads));
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.Refuse("num_key_value_heads",
                  Concat("must divide num_attention_heads, ", config.num_attention_heads));
  }
  fields.MustBe("head_dim", config.hidden_size / config.num_attention_heads);
  config.max_position_embeddings = fields.Size("max_position_embeddings", 2048);
  fields.MustBe("hidden_act", std::string("silu"));
  config.rms_norm_eps = fields.Number("rms_norm_eps", 1e-6, kEpsilons);
  constexpr HfRange kThetas{.from = 1, .below = 1e15};
  const double theta = fields.Number("rope_parameters.rope_theta", 10000, kThetas);
  config.rope_theta = fields.Number("rope_theta", theta, kThetas);
  // Versions of the library differ about which one counts.
  if (fields.Has("rope_parameters.rope_theta") && config.rope_theta != theta) {
    fields.Refuse("rope_theta", Concat("must be rope_parameters.rope_theta, ", theta));
  }
  CheckRotary(fields);
  fields.MustBe("attention_bias", false);
  fields.MustBe("mlp_bias", false);
  fields.Number("attention_dropout", 0, kDropouts);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", false);
  if (!fields.status().ok()) return fields.status();
  return config;
}

}  // namespace apogee::nn
