// SPDX-License-Identifier: Apache-2.0

// Models' settings as the transformers library keeps them: config.json beside the weights.
//
//   std::string text = nn::FormatHfConfig(model.config());                     // config.json
//   APOGEE_ASSIGN_OR_RETURN(nn::LlamaConfig config, nn::ParseLlamaHfConfig(text,
//   "dir/config.json")); nn::Llama model(config);
//
// From a folder: checkpoint::ReadTextFile(files, dir + "/config.json", nn::kMaxHfConfigBytes).
//
// The parser takes untrusted text: it never builds a document of it, caps depth and number of keys,
// and checks every range, so that what it returns makes a model. Fields that are missing have the
// library's defaults; fields that it does not know are ignored, for such files carry many. It
// refuses, as InvalidArgument that names path and field: another model_type or architecture;
// settings that would make another function of the same weights (another activation, scaled or
// partial rotary positions, attention over a window, biases in Llama's attention or MLP, heads or
// inner sizes of other widths, attention scaled by layer, quantized weights). Text that is not one
// JSON object, or gives a key twice, is DataLoss.
//
// A Mistral is a Llama where its window is as long as its positions, or null, and is written as
// one. GPT-2's settings may have the names that other models have (hidden_size for n_embd).
//
// Dropouts change no weight's meaning. Those that these models lack are told, and have no effect:
// one of attention weights (FormatHfConfig writes 0), and one after GPT-2's embedding that is not
// the one of the branches, which then counts for both.
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

// Takes a sentence for each setting that has no effect here; null: stderr.
using HfNotice = std::function<void(const std::string&)>;

// `path` is for messages. `recompute`, which the files lack, stays false.
absl::StatusOr<Gpt2Config> ParseGpt2HfConfig(const std::string& json, const std::string& path,
                                             const HfNotice& notice = nullptr);
// Of a Llama, or a Mistral.
absl::StatusOr<LlamaConfig> ParseLlamaHfConfig(const std::string& json, const std::string& path,
                                               const HfNotice& notice = nullptr);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_HF_CONFIG_H_
