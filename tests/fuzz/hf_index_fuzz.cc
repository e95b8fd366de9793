// SPDX-License-Identifier: Apache-2.0

// libFuzzer: the index of Hugging Face weights, from anybody.
#include <cstddef>
#include <cstdint>
#include <string>

#include "apogee/checkpoint/hf/hf_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using apogee::checkpoint::ParseHfIndex;
  const auto index = ParseHfIndex({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!index.ok()) return 0;
  for (const auto& [name, file] : index->weight_map) {
    if (name.empty() || file.empty() || file.find('/') != std::string::npos) __builtin_trap();
  }
  // What it accepts is written, and read back, as the same.
  const auto again = ParseHfIndex(apogee::checkpoint::FormatHfIndex(*index, 0), "fuzz");
  if (!again.ok() || again->weight_map != index->weight_map) __builtin_trap();
  return 0;
}
