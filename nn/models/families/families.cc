// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/families/families.h"

#include <algorithm>
#include <array>

#include "apogee/core/text/text.h"
#include "apogee/nn/models/families/encoders.h"
#include "apogee/nn/models/hf_model.h"

namespace apogee::nn {
namespace {

constexpr std::array kDecoders = {DecoderFamily{"gemma", "GemmaForCausalLM", ReadGemma},
                                  DecoderFamily{"gemma2", "Gemma2ForCausalLM", ReadGemma2},
                                  DecoderFamily{"gpt2", "GPT2LMHeadModel", ReadGpt2},
                                  DecoderFamily{"gpt_neox", "GPTNeoXForCausalLM", ReadGptNeoX},
                                  DecoderFamily{"llama", "LlamaForCausalLM", ReadLlama},
                                  DecoderFamily{"mistral", "MistralForCausalLM", ReadMistral},
                                  DecoderFamily{"olmo2", "Olmo2ForCausalLM", ReadOlmo2},
                                  DecoderFamily{"opt", "OPTForCausalLM", ReadOpt},
                                  DecoderFamily{"phi3", "Phi3ForCausalLM", ReadPhi3},
                                  DecoderFamily{"qwen2", "Qwen2ForCausalLM", ReadQwen2},
                                  DecoderFamily{"qwen3", "Qwen3ForCausalLM", ReadQwen3}};

constexpr const char* kBertType = "bert";
constexpr const char* kVitType = "vit";

absl::StatusOr<std::string> TypeOf(HfFields& fields) {
  if (!fields.Has("model_type")) {
    fields.Refuse("model_type", "must be one of " + JoinTexts(HfModelTypes(), ", "));
  }
  std::string type = fields.Text("model_type", "");
  if (!fields.status().ok()) return fields.status();
  return type;
}

// What `read` returns, unless a field is refused.
template <typename Fn>
auto Checked(FamilyFields& reader, const char* architecture, const Fn& read)
    -> absl::StatusOr<decltype(read())> {
  HfFields& fields = reader.fields;
  fields.MustList("architectures", architecture);
  if (fields.Has("quantization_config")) {
    fields.Refuse("quantization_config", "only null works: the weights must be floating numbers");
  }
  auto config = read();
  reader.TellUnread();
  if (!fields.status().ok()) return fields.status();
  return config;
}

}  // namespace

std::span<const DecoderFamily> DecoderFamilies() { return kDecoders; }

std::vector<std::string> HfModelTypes() {
  std::vector<std::string> types = {kBertType, kVitType};
  for (const DecoderFamily& family : kDecoders) types.emplace_back(family.model_type);
  std::ranges::sort(types);
  return types;
}

absl::StatusOr<DecoderConfig> ParseDecoderHfConfig(const std::string& json, const std::string& path,
                                                   const HfNotice& notice) {
  APOGEE_ASSIGN_OR_RETURN(HfFields fields, HfFields::Parse(json, path));
  APOGEE_ASSIGN_OR_RETURN(const std::string type, TypeOf(fields));
  const auto family = std::ranges::find(kDecoders, type, &DecoderFamily::model_type);
  if (family == kDecoders.end()) {
    return InvalidArgument(path, ": ", UnknownName("model_type", type, HfModelTypes()));
  }
  FamilyFields reader(fields, notice, path);
  return Checked(reader, family->architecture, [&] { return family->read(reader); });
}

absl::StatusOr<HfModel> MakeHfModel(const std::string& json, const std::string& path,
                                    const HfNotice& notice) {
  APOGEE_ASSIGN_OR_RETURN(HfFields fields, HfFields::Parse(json, path));
  APOGEE_ASSIGN_OR_RETURN(const std::string type, TypeOf(fields));
  HfModel model{.module = nullptr, .model_type = type, .config_json = json};
  FamilyFields reader(fields, notice, path);
  if (type == kBertType) {
    APOGEE_ASSIGN_OR_RETURN(const BertConfig config,
                            Checked(reader, "BertForMaskedLM", [&] { return ReadBert(reader); }));
    model.module = std::make_unique<Bert>(config);
    model.task = HfTask::kMaskedLm;
    model.vocab_size = config.vocab_size;
    model.max_tokens = config.max_tokens;
    model.token_ids = fields.ReadTokenIds();
    return model;
  }
  if (type == kVitType) {
    APOGEE_ASSIGN_OR_RETURN(const VitConfig config, Checked(reader, "ViTForImageClassification",
                                                            [&] { return ReadVit(reader); }));
    model.module = std::make_unique<Vit>(config);
    model.task = HfTask::kImageClassification;
    return model;
  }
  APOGEE_ASSIGN_OR_RETURN(const DecoderConfig config, ParseDecoderHfConfig(json, path, notice));
  model.module = std::make_unique<Decoder>(config);
  model.vocab_size = config.vocab_size;
  model.max_tokens = config.max_tokens;
  model.token_ids = config.token_ids;
  return model;
}

}  // namespace apogee::nn
