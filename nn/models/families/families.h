// SPDX-License-Identifier: Apache-2.0

// The families of decoders: what each reads from config.json.
//
//   for (const DecoderFamily& family : DecoderFamilies()) names.push_back(family.model_type);
#ifndef APOGEE_NN_MODELS_FAMILIES_FAMILIES_H_
#define APOGEE_NN_MODELS_FAMILIES_FAMILIES_H_

#include <span>

#include "apogee/nn/models/families/family_fields.h"

namespace apogee::nn {

struct DecoderFamily {
  const char* model_type;
  const char* architecture;  // of the language model
  DecoderConfig (*read)(FamilyFields& fields);
};

// Sorted by model_type.
std::span<const DecoderFamily> DecoderFamilies();

DecoderConfig ReadLlama(FamilyFields& f);
DecoderConfig ReadMistral(FamilyFields& f);
DecoderConfig ReadQwen2(FamilyFields& f);
DecoderConfig ReadQwen3(FamilyFields& f);
DecoderConfig ReadOlmo2(FamilyFields& f);
DecoderConfig ReadPhi3(FamilyFields& f);
DecoderConfig ReadGemma(FamilyFields& f);
DecoderConfig ReadGemma2(FamilyFields& f);
DecoderConfig ReadGpt2(FamilyFields& f);
DecoderConfig ReadGptNeoX(FamilyFields& f);
DecoderConfig ReadOpt(FamilyFields& f);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_FAMILIES_FAMILIES_H_
