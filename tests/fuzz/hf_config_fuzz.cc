// SPDX-License-Identifier: Apache-2.0

// libFuzzer: the config.json of a Hugging Face folder, from anybody.
#include <cstddef>
#include <cstdint>
#include <string>

#include "apogee/nn/models/hf_model.h"

namespace {

void Ignore(const std::string&) {}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string json(reinterpret_cast<const char*>(data), size);
  const auto config = apogee::nn::ParseDecoderHfConfig(json, "fuzz", Ignore);
  if (!config.ok()) return 0;
  // What is accepted makes a model. Parameters have no values, so that sizes cost nothing.
  if (!apogee::nn::BlockProblems(config->block).empty()) __builtin_trap();
  constexpr int64_t kFewLayers = 8;
  if (config->num_layers <= kFewLayers) apogee::nn::Decoder model(*config);
  return 0;
}
