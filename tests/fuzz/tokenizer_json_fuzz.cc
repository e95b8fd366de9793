// SPDX-License-Identifier: Apache-2.0

// libFuzzer: a tokenizer.json from anybody, and texts through what it accepts.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "apogee/data/tokenizer/formats/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = apogee::data::ParseTokenizerJson(text, "fuzz");
  // Only now and then, because it costs much more: the memory of a call is 2 MiB.
  if (!tokenizer.ok() || size % 4 != 0) return 0;
  std::vector<int32_t> ids;
  (*tokenizer)->Encode("ab  It's\xC2\xA0 12 o\xCC\x8B\xFF\n\n <s>", ids);
  (*tokenizer)->Encode(std::string_view(text).substr(0, 300), ids);
  for (const int32_t id : ids) {
    if (id < 0 || id >= (*tokenizer)->vocab_size()) __builtin_trap();
  }
  (*tokenizer)->Decode(ids);
  (*tokenizer)->Decode(ids, /*skip_special=*/true);
  return 0;
}
