// SPDX-License-Identifier: Apache-2.0

// The fields of config.json that BERT and ViT read.
//
//   const BertConfig config = ReadBert(fields);
#ifndef APOGEE_NN_MODELS_FAMILIES_ENCODERS_H_
#define APOGEE_NN_MODELS_FAMILIES_ENCODERS_H_

#include "apogee/nn/models/bert.h"
#include "apogee/nn/models/families/family_fields.h"
#include "apogee/nn/models/vit.h"

namespace apogee::nn {

BertConfig ReadBert(FamilyFields& f);
VitConfig ReadVit(FamilyFields& f);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_FAMILIES_ENCODERS_H_
