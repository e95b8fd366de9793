// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/families/family_fields.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "apogee/nn/models/rope.h"

namespace apogee::nn {
namespace {

using internal::Concat;

constexpr int64_t kMaxLayers = 10'000;  // more is a mistake or an attack
constexpr HfRange kDropouts{.from = 0, .below = 1};
constexpr HfRange kEpsilons{.from = 0, .below = 1};
constexpr HfRange kThetas{.from = 1, .below = 1e15};
constexpr HfRange kFactors{.from = 1, .below = 1e9};

struct ActivationName {
  const char* name;
  Activation activation;
  bool gated;  // gated MLPs have it
};
constexpr std::array kActivations = {
    ActivationName{"silu", Activation::kSilu, true},
    ActivationName{"swish", Activation::kSilu, true},
    ActivationName{"gelu", Activation::kGelu, true},
    ActivationName{"gelu_new", Activation::kGeluTanh, true},
    ActivationName{"gelu_pytorch_tanh", Activation::kGeluTanh, true},
    ActivationName{"relu", Activation::kRelu, true},
    ActivationName{"tanh", Activation::kTanh, false},
    ActivationName{"sigmoid", Activation::kSigmoid, false}};

}  // namespace

DecoderConfig FamilyFields::Sizes(const FamilyDefaults& defaults) {
  const SizeNames& names = defaults.names;
  DecoderConfig config;
  BlockConfig& block = config.block;
  config.vocab_size = fields.Size("vocab_size", defaults.vocab_size);
  block.hidden_size = fields.Size(names.hidden_size, defaults.hidden_size);
  const int64_t inner =
      defaults.intermediate_size == 0 ? 4 * block.hidden_size : defaults.intermediate_size;
  block.intermediate_size = fields.Size(names.intermediate_size, inner);
  config.num_layers = fields.Size(names.layers, defaults.layers);
  if (config.num_layers > kMaxLayers) {
    fields.Refuse(names.layers, Concat("at most ", kMaxLayers, " work"));
  }
  block.num_heads = fields.Size(names.heads, defaults.heads);
  const bool as_heads = defaults.kv_heads == 0 || fields.HasNull("num_key_value_heads");
  block.num_kv_heads =
      fields.Size("num_key_value_heads", as_heads ? block.num_heads : defaults.kv_heads);
  if (block.num_heads % block.num_kv_heads != 0) {
    fields.Refuse("num_key_value_heads",
                  Concat("must divide ", names.heads, ", ", block.num_heads));
  }
  const int64_t quotient = std::max<int64_t>(1, block.hidden_size / block.num_heads);
  const bool divided = defaults.head_dim == 0 || fields.HasNull("head_dim");
  if (divided && !fields.Has("head_dim") && block.hidden_size % block.num_heads != 0) {
    fields.Refuse(names.hidden_size,
                  Concat("must be a multiple of ", names.heads, ", ", block.num_heads));
  }
  block.head_dim = fields.Size("head_dim", divided ? quotient : defaults.head_dim);
  config.max_tokens = fields.Size(names.max_tokens, defaults.max_tokens);
  block.norm_eps = fields.Number(names.norm_eps, defaults.norm_eps, kEpsilons);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", defaults.tied);
  config.padding_id = PaddingId(defaults.pad, config.vocab_size);
  config.token_ids = fields.ReadTokenIds();
  return config;
}

void FamilyFields::Rope(const FamilyDefaults& defaults, DecoderConfig& config) {
  RotarySettings& rotary = config.block.rotary;
  const double theta = fields.Number("rope_parameters.rope_theta", defaults.theta, kThetas);
  rotary.theta = fields.Number("rope_theta", theta, kThetas);
  // Versions of the library disagree on which of the two counts.
  if (fields.Has("rope_parameters.rope_theta") && rotary.theta != theta) {
    fields.Refuse("rope_theta", Concat("must be rope_parameters.rope_theta, ", theta));
  }
  const double whole =
      fields.Number("rope_parameters.partial_rotary_factor", defaults.rotary_fraction, {0, 1.0001});
  const double fraction = fields.Number("partial_rotary_factor", whole, {0, 1.0001});
  const int64_t head_dim = config.block.head_dim;
  const auto dims = static_cast<int64_t>(static_cast<double>(head_dim) * fraction);
  if (dims < 2 || dims % 2 != 0 || dims > head_dim) {
    fields.Refuse(fraction < 1 ? "partial_rotary_factor" : "head_dim",
                  Concat("so rotary positions turn ", dims, " of the ", head_dim,
                         " dims of a head; they turn pairs: this must be an even number from 2"));
    return;
  }
  if (dims < head_dim) rotary.dims = dims;

  for (const std::string object : {"rope_parameters", "rope_scaling"}) {
    if (!fields.Has(object)) continue;
    const std::string name = object + (fields.Has(object + ".rope_type") ? ".rope_type" : ".type");
    if (object == "rope_scaling" && !fields.Has(name)) {
      fields.Refuse(object, "only null, or an object with a rope_type, works");
    }
    const std::string type = fields.Text(name, "default");
    const auto number = [&](const char* field) {
      if (!fields.Has(object + "." + field)) {
        fields.Refuse(object + "." + field, "but the scaling \"" + type + "\" needs it");
      }
      return fields.Number(object + "." + field, 1, kFactors);
    };
    // Files of some versions have both names, and the first positions of models without a scaling.
    for (const char* other : {".type", ".original_max_position_embeddings"}) {
      fields.Has(object + other);
    }
    if (type == "default") continue;
    if (type == "linear") {
      const double factor = number("factor");
      rotary.inverse_frequencies = RotaryFrequencies(rotary.theta, dims);
      for (double& frequency : rotary.inverse_frequencies) frequency /= factor;
    } else if (type == "llama3") {
      const Llama3Scaling scaling{
          .factor = number("factor"),
          .low_freq_factor = number("low_freq_factor"),
          .high_freq_factor = number("high_freq_factor"),
          .original_max_tokens = number("original_max_position_embeddings")};
      if (scaling.high_freq_factor <= scaling.low_freq_factor) {
        fields.Refuse(object + ".high_freq_factor",
                      Concat("must be more than low_freq_factor, ", scaling.low_freq_factor));
      }
      rotary.inverse_frequencies =
          Llama3Frequencies(RotaryFrequencies(rotary.theta, dims), scaling);
    } else {
      fields.Refuse(name, "only \"default\", \"linear\" and \"llama3\" work");
    }
  }
}

Activation FamilyFields::ReadActivation(const std::string& name, const std::string& missing,
                                        bool gated) {
  const std::string text = fields.Text(name, missing);
  std::string known;
  for (const ActivationName& entry : kActivations) {
    if (gated && !entry.gated) continue;
    if (text == entry.name) return entry.activation;
    known += Concat(known.empty() ? "" : ", ", "\"", entry.name, "\"");
  }
  fields.Refuse(name, Concat("only ", known, " work"));
  return Activation::kSilu;
}

void FamilyFields::SetWindows(int64_t window, const std::vector<bool>& slides,
                              DecoderConfig& config) {
  const std::vector<std::string> types = fields.Texts("layer_types");
  if (!types.empty() && types.size() != slides.size()) {
    fields.Refuse("layer_types", Concat("so it has ", types.size(), " values for ", slides.size(),
                                        " layers; one for each layer works"));
    return;
  }
  bool any = false;
  for (size_t i = 0; i < slides.size(); ++i) {
    const bool sliding = types.empty() ? slides[i] : types[i] == "sliding_attention";
    if (!types.empty() && !sliding && types[i] != "full_attention") {
      fields.Refuse("layer_types", "only \"full_attention\" and \"sliding_attention\" work");
    }
    if (sliding && window == 0) {
      fields.Refuse("layer_types", "but there is no sliding_window");
    }
    // A window of all positions is none.
    config.windows.push_back(sliding && window < config.max_tokens ? window : 0);
    any = any || config.windows.back() > 0;
  }
  if (!any) config.windows.clear();
}

int64_t FamilyFields::PaddingId(std::optional<int64_t> missing, int64_t vocab_size) {
  const std::optional<int64_t> pad = fields.Id("pad_token_id", missing);
  if (!pad) return -1;
  // torch counts a negative id from the end.
  const int64_t id = *pad < 0 ? *pad + vocab_size : *pad;
  // A default that a small vocabulary lacks is no token of it.
  if (id >= vocab_size && !fields.Has("pad_token_id")) return -1;
  if (id < 0 || id >= vocab_size) {
    fields.Refuse("pad_token_id", Concat("must be a token of the vocabulary of ", vocab_size));
    return -1;
  }
  return id;
}

double FamilyFields::Dropout(const std::string& name, double missing) {
  return fields.Number(name, missing, kDropouts);
}

void FamilyFields::TellDropout(const std::string& name, double missing, const char* of) {
  const double rate = Dropout(name, missing);
  if (rate == 0 || !fields.status().ok()) return;
  Tell(Concat("\"", name, "\" is ", fields.Has(name) ? "" : "missing, so ", rate,
              " in the library; this model drops no ", of,
              ": it computes the same, and trains without that dropout"));
}

void FamilyFields::Tell(const std::string& text) const {
  if (notice_) return notice_(path_ + ": " + text);
  std::fprintf(stderr, "%s: %s\n", path_.c_str(), text.c_str());
}

void FamilyFields::TellUnread() {
  for (const std::string& field : fields.Unread()) {
    if (field.starts_with("\"rope_")) {
      const size_t end = field.find('"', 1);
      fields.Refuse(field.substr(1, end - 1), "a setting of rotary positions that isn't supported");
      return;
    }
    Tell(field + ", which this model does not know and does not use");
  }
}

void CheckQuantization(HfFields& fields) {
  const std::string object = "quantization_config";
  if (!fields.Has(object)) return;
  const bool nf4 = fields.Is(object + ".quant_method", "bitsandbytes") &&
                   fields.Flag(object + ".load_in_4bit", false) &&
                   fields.Is(object + ".bnb_4bit_quant_type", "nf4");
  if (!nf4) {
    fields.Refuse(object,
                  "only null and nf4 of bitsandbytes (load_in_4bit) work: weights in other codes "
                  "are not read");
  }
  // The files say the rest, of each weight.
  for (const char* field :
       {"_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage",
        "bnb_4bit_use_double_quant", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight",
        "llm_int8_skip_modules", "llm_int8_threshold", "load_in_8bit"}) {
    fields.Has(object + "." + field);
  }
}

}  // namespace apogee::nn
