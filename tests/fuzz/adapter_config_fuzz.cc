// SPDX-License-Identifier: Apache-2.0

// libFuzzer: the adapter_config.json of an adapter's folder, from anybody. What is accepted can be
// written and read again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "apogee/booster/lora/adapter_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string json(reinterpret_cast<const char*>(data), size);
  const auto config = apogee::ParseAdapterConfig(json, "fuzz");
  if (!config.ok()) return 0;
  const std::string text = apogee::FormatAdapterConfig(*config, false);
  const auto again = apogee::ParseAdapterConfig(text, "again");
  if (!again.ok() || apogee::FormatAdapterConfig(*again, false) != text) __builtin_trap();
  return 0;
}
