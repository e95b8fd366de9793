// SPDX-License-Identifier: Apache-2.0

// A model from the config.json of a Hugging Face folder: the class is found by its "model_type".
//
//   APOGEE_ASSIGN_OR_RETURN(nn::HfModel hf, nn::MakeHfModel(json, "dir/config.json"));
//   hf.module->Initialize(context);                // or InitializeLazily; then load the weights
//   Tensor logits = (*hf.module)(tokens);
//
// LoadPretrained (booster/pretrained.h) does this and loads the folder's weights. The names of the
// parameters are those in the folder's files.
#ifndef APOGEE_NN_MODELS_HF_MODEL_H_
#define APOGEE_NN_MODELS_HF_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/nn/configured.h"
#include "apogee/nn/models/hf_config.h"

namespace apogee::nn {

enum class HfTask {
  kCausalLm,             // tokens i64 [B, T] -> logits [B, T, vocab_size]; targets are shifted
  kMaskedLm,             // the same; targets are not shifted
  kImageClassification,  // pixels [B, channels, height, width] -> logits [B, labels]
};

struct HfModel {
  std::unique_ptr<Module> module;  // without values
  std::string model_type;          // "llama"
  HfTask task = HfTask::kCausalLm;
  // The text that the model was made from. Give it to save_model: special tokens and fields that
  // this library does not know survive.
  std::string config_json;
  int64_t vocab_size = 0;  // of tokens; 0: takes no tokens
  int64_t max_tokens = 0;  // of a sequence
  TokenIds token_ids = {};
};

// The supported values of "model_type", sorted.
std::vector<std::string> HfModelTypes();

// `path` is for messages. InvalidArgument for an unknown model_type, with the nearest names and the
// supported ones, for the architecture of another head, and for every setting that changes the
// result and is not supported; other errors as in hf_config.h.
absl::StatusOr<HfModel> MakeHfModel(const std::string& json, const std::string& path,
                                    const HfNotice& notice = nullptr);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_HF_MODEL_H_
