// SPDX-License-Identifier: Apache-2.0

// libFuzzer: the manifest of a checkpoint. The digest at its end is made here, else nothing would
// get past it: the input is the text before it.
#include <cstddef>
#include <cstdint>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

#include "apogee/checkpoint/format/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string json(reinterpret_cast<const char*>(data), size);
  char digest[40];
  std::snprintf(digest, sizeof(digest), ",\"digest\":\"%016llx\"}\n",
                static_cast<unsigned long long>(XXH3_64bits(json.data(), json.size())));
  const auto manifest = apogee::checkpoint::ParseManifest(json + digest, "fuzz");
  if (!manifest.ok()) return 0;
  // What it accepts is written, and read back, as the same.
  const std::string text = apogee::checkpoint::FormatManifest(*manifest);
  const auto again = apogee::checkpoint::ParseManifest(text, "fuzz");
  if (!again.ok() || apogee::checkpoint::FormatManifest(*again) != text) __builtin_trap();
  return 0;
}
