// SPDX-License-Identifier: Apache-2.0

// libFuzzer: the config.json of a Hugging Face folder, from anybody.
#include <cstddef>
#include <cstdint>
#include <string>

#include "apogee/nn/models/hf_config.h"

namespace {

void Ignore(const std::string&) {}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using apogee::nn::FormatHfConfig;
  const std::string json(reinterpret_cast<const char*>(data), size);
  // What is accepted makes a model, and is written, and read back, as the same.
  if (const auto config = apogee::nn::ParseGpt2HfConfig(json, "fuzz", Ignore); config.ok()) {
    if (config->n_head < 1 || config->n_embd % config->n_head != 0) __builtin_trap();
    const std::string text = FormatHfConfig(*config);
    const auto again = apogee::nn::ParseGpt2HfConfig(text, "fuzz", Ignore);
    if (!again.ok() || FormatHfConfig(*again) != text) __builtin_trap();
  }
  if (const auto config = apogee::nn::ParseLlamaHfConfig(json, "fuzz", Ignore); config.ok()) {
    if (config->num_key_value_heads < 1 ||
        config->num_attention_heads % config->num_key_value_heads != 0) {
      __builtin_trap();
    }
    const std::string text = FormatHfConfig(*config);
    const auto again = apogee::nn::ParseLlamaHfConfig(text, "fuzz", Ignore);
    if (!again.ok() || FormatHfConfig(*again) != text) __builtin_trap();
  }
  return 0;
}
