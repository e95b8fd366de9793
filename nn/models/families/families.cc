// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/families/families.h"

#include <algorithm>
#include <array>

#include "apogee/core/text/text.h"
#include "apogee/nn/models/hf_model.h"

namespace apogee::nn {
namespace {

constexpr std::array kDecoders = {DecoderFamily{"gemma", "GemmaForCausalLM", ReadGemma},
                                  DecoderFamily{"gemma2", "Gemma2ForCausalLM", ReadGemma2},
                                  DecoderFamily{"gpt2", "GPT2LMHeadModel", ReadGpt2},
                                  DecoderFamily{"gpt_neox", "GPTNeoXForCausalLM", ReadGptNeoX},
                                  DecoderFamily{"llama", "LlamaForCausalLM", ReadLlama},
                                  DecoderFamily{"mistral", "MistralForCausalLM", ReadMistral},
                                  DecoderFamily{"mixtral", "MixtralForCausalLM", ReadMixtral},
                                  DecoderFamily{"olmo2", "Olmo2ForCausalLM", ReadOlmo2},
                                  DecoderFamily{"opt", "OPTForCausalLM", ReadOpt},
                                  DecoderFamily{"phi3", "Phi3ForCausalLM", ReadPhi3},
                                  DecoderFamily{"qwen2", "Qwen2ForCausalLM", ReadQwen2},
                                  DecoderFamily{"qwen2_moe", "Qwen2MoeForCausalLM", ReadQwen2Moe},
                                  DecoderFamily{"qwen3", "Qwen3ForCausalLM", ReadQwen3},
                                  DecoderFamily{"qwen3_moe", "Qwen3MoeForCausalLM", ReadQwen3Moe}};

}  // namespace

absl::StatusOr<std::string> ReadModelType(HfFields& fields) {
  if (!fields.Has("model_type")) {
    fields.Refuse("model_type", "must be one of " + JoinTexts(HfModelTypes(), ", "));
  }
  std::string type = fields.Text("model_type", "");
  if (!fields.status().ok()) return fields.status();
  return type;
}

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
  APOGEE_ASSIGN_OR_RETURN(const std::string type, ReadModelType(fields));
  const auto family = std::ranges::find(kDecoders, type, &DecoderFamily::model_type);
  if (family == kDecoders.end()) {
    return InvalidArgument(path, ": ", UnknownName("model_type", type, HfModelTypes()));
  }
  FamilyFields reader(fields, notice, path);
  return ReadChecked(reader, family->architecture, [&] { return family->read(reader); });
}

}  // namespace apogee::nn
