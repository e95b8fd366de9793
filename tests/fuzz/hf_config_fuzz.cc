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
  const std::string json(reinterpret_cast<const char*>(data), size);
  const auto config = apogee::nn::ParseDecoderHfConfig(json, "fuzz", Ignore);
  if (!config.ok()) return 0;
  // The blocks of a configuration that is accepted have no problems.
  if (!apogee::nn::BlockProblems(config->block).empty()) __builtin_trap();
  return 0;
}
