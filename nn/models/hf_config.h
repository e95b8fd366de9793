// SPDX-License-Identifier: Apache-2.0

// A model's settings in the format of the transformers library: config.json beside the weights.
//
//   std::string text = nn::FormatHfConfig(model.config());          // of an nn::Gpt2 or nn::Llama
//   APOGEE_ASSIGN_OR_RETURN(nn::DecoderConfig config,               // of any family
//                           nn::ParseDecoderHfConfig(text, "dir/config.json"));
//   nn::Decoder model(config);
//
// MakeHfModel (hf_model.h) does both steps, and knows encoders, too. To read the text of a folder:
// checkpoint::ReadTextFile(files, dir + "/config.json", nn::kMaxHfConfigBytes).
//
// The parser takes untrusted text: it never builds a document in memory, limits depth and the
// number of keys, and checks every range, so the config it returns makes a valid model. Missing
// fields have the library's defaults, and the names of all its versions are read (rope_parameters,
// rope_scaling, rotary_pct).
//
// Errors:
//   DataLoss         The text is not one JSON object, or gives a key twice.
//   InvalidArgument  An unknown model_type, another architecture, or a setting with which the same
//                    weights would compute another function and that is not supported, for example
//                    another scaling of rotary positions or quantized weights. The message names
//                    path, field and value.
//
// Settings that have no effect give a notice: fields that are not known, dropouts that these models
// lack (of attention weights), and a dropout of GPT-2's embeddings that differs from that of its
// branches, which is then used for both.
#ifndef APOGEE_NN_MODELS_HF_CONFIG_H_
#define APOGEE_NN_MODELS_HF_CONFIG_H_

#include <cstdint>
#include <functional>
#include <string>

#include "apogee/core/status.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"

namespace apogee::nn {

inline constexpr int64_t kMaxHfConfigBytes = int64_t{1} << 20;

std::string FormatHfConfig(const Gpt2Config& config);
std::string FormatHfConfig(const LlamaConfig& config);

// Gets one sentence for each setting that has no effect; null prints them to stderr.
using HfNotice = std::function<void(const std::string&)>;

// `path` is for messages. `recompute` is not in such files and stays false.
absl::StatusOr<DecoderConfig> ParseDecoderHfConfig(const std::string& json, const std::string& path,
                                                   const HfNotice& notice = nullptr);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_HF_CONFIG_H_
