// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/hf_model.h"

#include "apogee/nn/models/families/encoders.h"
#include "apogee/nn/models/families/families.h"

namespace apogee::nn {

absl::StatusOr<HfModel> MakeHfModel(const std::string& json, const std::string& path,
                                    const HfNotice& notice) {
  APOGEE_ASSIGN_OR_RETURN(HfFields fields, HfFields::Parse(json, path));
  APOGEE_ASSIGN_OR_RETURN(const std::string type, ReadModelType(fields));
  HfModel model{.module = nullptr, .model_type = type, .config_json = json};
  FamilyFields reader(fields, notice, path);
  if (type == kBertType) {
    APOGEE_ASSIGN_OR_RETURN(const BertConfig config, ReadChecked(reader, "BertForMaskedLM",
                                                                 [&] { return ReadBert(reader); }));
    model.module = std::make_unique<Bert>(config);
    model.task = HfTask::kMaskedLm;
    model.vocab_size = config.vocab_size;
    model.max_tokens = config.max_tokens;
    model.token_ids = fields.ReadTokenIds();
    return model;
  }
  if (type == kVitType) {
    APOGEE_ASSIGN_OR_RETURN(const VitConfig config, ReadChecked(reader, "ViTForImageClassification",
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
