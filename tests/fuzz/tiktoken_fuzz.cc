// SPDX-License-Identifier: Apache-2.0

// libFuzzer: ranks of tiktoken from anybody, alone and behind a token for each byte, without which
// they are refused.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "apogee/data/tokenizer/formats/tiktoken.h"

namespace {

std::string ByteRanks() {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;
  for (unsigned byte = 0; byte < 256; ++byte) {
    ranks += {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '=', ' '};
    ranks += std::to_string(byte) + "\n";
  }
  return ranks;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string bytes = ByteRanks();
  const std::string text(reinterpret_cast<const char*>(data), size);
  apogee::data::LooksLikeTiktoken(text);
  apogee::data::TiktokenOptions options;
  if (size % 2 == 0) options.special_tokens.emplace();
  (void)apogee::data::ParseTiktoken(text, "fuzz", options);
  // Only now and then, because it costs much more.
  if (size % 32 != 0) return 0;
  const auto tokenizer = apogee::data::ParseTiktoken(bytes + text, "fuzz", options);
  if (!tokenizer.ok()) return 0;
  std::vector<int32_t> ids;
  (*tokenizer)->Encode("ab  It's 12 \xFF\n\n <|eot_id|>", ids);
  (*tokenizer)->Encode(std::string_view(text).substr(0, 300), ids);
  (*tokenizer)->Decode(ids);
  return 0;
}
