// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/byte_tokenizer.h"

#include <algorithm>

#include "apogee/core/error.h"

namespace apogee::data {

void ByteTokenizer::Encode(std::string_view text, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  ids.resize(before + text.size());
  std::transform(text.begin(), text.end(), ids.begin() + static_cast<std::ptrdiff_t>(before),
                 [](char c) { return static_cast<unsigned char>(c); });
}

std::string ByteTokenizer::Decode(std::span<const int32_t> ids, bool /*skip_special*/) const {
  std::string text;
  text.reserve(ids.size());
  for (const int32_t id : ids) {
    APOGEE_CHECK(id >= 0 && id < kVocabSize, "Decode: token ", id,
                 " is not a byte; byte-level tokens lie in [0, 256)");
    text.push_back(static_cast<char>(static_cast<unsigned char>(id)));
  }
  return text;
}

std::optional<int32_t> ByteTokenizer::IdOf(std::string_view token) const {
  if (token.size() != 1) return std::nullopt;
  return static_cast<unsigned char>(token[0]);
}

}  // namespace apogee::data
