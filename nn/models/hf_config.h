// SPDX-License-Identifier: Apache-2.0

// Reads and writes a model's settings in the format of the transformers library: config.json beside
// the weights.
//
//   std::string text = nn::FormatHfConfig(model.config());                     // write config.json
//   APOGEE_ASSIGN_OR_RETURN(nn::LlamaConfig config,                            // read it
//                           nn::ParseLlamaHfConfig(text, "dir/config.json"));
//   nn::Llama model(config);
//
// To read from a folder: checkpoint::ReadTextFile(files, dir + "/config.json",
// nn::kMaxHfConfigBytes).
//
// The parser takes untrusted text: it never builds a document in memory, limits depth and the
// number of keys, and checks every range, so the config it returns makes a valid model. Missing
// fields have the library's defaults. Unknown fields are ignored, since such files have many.
//
// Errors:
//   DataLoss         The text is not one JSON object, or gives a key twice.
//   InvalidArgument  Another model_type or architecture, or a setting with which the same weights
//                    would compute another function: another activation, scaled or partial rotary
//                    positions, sliding-window attention, biases in Llama's attention or MLP, other
//                    head or inner sizes, attention scaled by layer, quantized weights. The message
//                    names path and field.
//
// A Mistral config is read as a Llama if its window covers all positions or is null, and is written
// as a Llama. GPT-2's settings may have the names that other models use (hidden_size for n_embd).
//
// A dropout setting that these models lack has no effect and gives a notice. There are two: dropout
// of attention weights (FormatHfConfig writes 0), and an embd_pdrop of GPT-2 that differs from
// resid_pdrop, which is then used for both.
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
absl::StatusOr<Gpt2Config> ParseGpt2HfConfig(const std::string& json, const std::string& path,
                                             const HfNotice& notice = nullptr);
// A Llama or a Mistral.
absl::StatusOr<LlamaConfig> ParseLlamaHfConfig(const std::string& json, const std::string& path,
                                               const HfNotice& notice = nullptr);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_HF_CONFIG_H_
