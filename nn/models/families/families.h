// SPDX-License-Identifier: Apache-2.0

// The families of decoders, and the function by which each reads config.json.
//
//   for (const DecoderFamily& family : DecoderFamilies()) names.push_back(family.model_type);
#ifndef APOGEE_NN_MODELS_FAMILIES_FAMILIES_H_
#define APOGEE_NN_MODELS_FAMILIES_FAMILIES_H_

#include <span>
#include <string>

#include "apogee/nn/models/families/family_fields.h"

namespace apogee::nn {

struct DecoderFamily {
  const char* model_type;
  const char* architecture;  // of the language model
  DecoderConfig (*read)(FamilyFields& fields);
};

// Sorted by model_type.
std::span<const DecoderFamily> DecoderFamilies();

// The values of "model_type" that are no decoders.
inline constexpr const char* kBertType = "bert";
inline constexpr const char* kVitType = "vit";

// "model_type"; an error without it.
absl::StatusOr<std::string> ReadModelType(HfFields& fields);

// Records a problem for weights in other codes than those that are read
// (booster/quantized/quantized_files.h).
void CheckQuantization(HfFields& fields);

// What `read` returns, unless a field is refused.
template <typename Fn>
auto ReadChecked(FamilyFields& reader, const char* architecture, const Fn& read)
    -> absl::StatusOr<decltype(read())> {
  HfFields& fields = reader.fields;
  fields.MustList("architectures", architecture);
  CheckQuantization(fields);
  auto config = read();
  reader.TellUnread();
  if (!fields.status().ok()) return fields.status();
  return config;
}

DecoderConfig ReadLlama(FamilyFields& f);
DecoderConfig ReadMistral(FamilyFields& f);
DecoderConfig ReadMixtral(FamilyFields& f);
DecoderConfig ReadQwen2(FamilyFields& f);
DecoderConfig ReadQwen2Moe(FamilyFields& f);
DecoderConfig ReadQwen3(FamilyFields& f);
DecoderConfig ReadQwen3Moe(FamilyFields& f);
DecoderConfig ReadOlmo2(FamilyFields& f);
DecoderConfig ReadPhi3(FamilyFields& f);
DecoderConfig ReadGemma(FamilyFields& f);
DecoderConfig ReadGemma2(FamilyFields& f);
DecoderConfig ReadGpt2(FamilyFields& f);
DecoderConfig ReadGptNeoX(FamilyFields& f);
DecoderConfig ReadOpt(FamilyFields& f);

// What Llama, Mistral and Qwen have in common, with experts or without.
DecoderConfig CommonOfLlama(FamilyFields& f, const FamilyDefaults& defaults, const char* type);
// The window of Qwen's files; 0: they do not use it.
int64_t ReadQwenWindow(FamilyFields& f);
// The windows of Qwen2 and Qwen3, which begin at a layer, and only if they are asked for.
void ReadQwenWindows(FamilyFields& f, DecoderConfig& config);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_FAMILIES_FAMILIES_H_
