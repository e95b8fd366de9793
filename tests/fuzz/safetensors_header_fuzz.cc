// SPDX-License-Identifier: Apache-2.0

// libFuzzer: the header of a safetensors file, from anybody. The first two bytes are the size of
// the data, so that headers that tile it can be found.
#include <cstddef>
#include <cstdint>
#include <string>

#include "apogee/checkpoint/format/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const int64_t data_bytes = data[0] | data[1] << 8;
  const std::string json(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto header =
      apogee::checkpoint::ParseSafetensorsHeader(json, {.path = "fuzz", .data_bytes = data_bytes});
  if (!header.ok()) return 0;
  // What it accepts tiles the data.
  int64_t total = 0;
  for (const auto& [name, entry] : header->entries) {
    if (entry.begin < 0 || entry.end > data_bytes || entry.begin > entry.end) __builtin_trap();
    total += entry.end - entry.begin;
  }
  if (total != data_bytes) __builtin_trap();
  return 0;
}
