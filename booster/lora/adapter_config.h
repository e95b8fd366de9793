// SPDX-License-Identifier: Apache-2.0

// adapter_config.json of PEFT: the options of an adapter.
//
//   APOGEE_ASSIGN_OR_RETURN(const AdapterConfig config, ParseAdapterConfig(json, path));
//   nn::AddLora(model, config.lora);
//   std::string text = FormatAdapterConfig({.lora = options, .base_model = "gpt2"},
//                                          /*fan_in_fan_out=*/true);
//
// Fields that this library does not know, and that are not null, false or empty, are refused by
// name: they may change what the adapter computes. Keys of patterns and targets are ends of names;
// regular expressions are refused. Text from anybody can be parsed.
#ifndef APOGEE_BOOSTER_LORA_ADAPTER_CONFIG_H_
#define APOGEE_BOOSTER_LORA_ADAPTER_CONFIG_H_

#include <cstdint>
#include <string>

#include "apogee/core/status.h"
#include "apogee/nn/lora/lora.h"

namespace apogee {

inline constexpr const char* kAdapterConfigName = "adapter_config.json";
inline constexpr const char* kAdapterWeightsName = "adapter_model.safetensors";
inline constexpr int64_t kMaxAdapterConfigBytes = 1 << 20;

struct AdapterConfig {
  nn::LoraOptions lora;
  std::string base_model = {};  // base_model_name_or_path
  std::string task_type = "CAUSAL_LM";
};

// DataLoss if the text is not one JSON object; InvalidArgument for a field that is refused.
absl::StatusOr<AdapterConfig> ParseAdapterConfig(const std::string& json, const std::string& path);

// `fan_in_fan_out`: adapted layers have weights [in, out] (GPT-2).
std::string FormatAdapterConfig(const AdapterConfig& config, bool fan_in_fan_out);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_LORA_ADAPTER_CONFIG_H_
