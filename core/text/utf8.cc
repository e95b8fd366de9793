// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/text/utf8.h"

#include <algorithm>
#include <cstring>

namespace apogee {

// Table 3-7 of the Unicode Standard: the second byte of some leads has a narrower range, so that
// there are no overlong forms and no surrogates.
Utf8Sequence Utf8SequenceAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {0, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (at + i == text.size() || byte(at + i) < low || byte(at + i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

size_t ValidUtf8Bytes(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word;
    while (at + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080u) != 0) break;
      at += sizeof(word);
    }
    if (at == text.size()) break;
    const Utf8Sequence sequence = Utf8SequenceAt(text, at);
    if (!sequence.valid) return at;
    at += sequence.bytes;
  }
  return at;
}

std::string_view ReadableUtf8(std::string_view text, std::string& copy) {
  size_t valid = ValidUtf8Bytes(text);
  if (valid == text.size()) return text;
  copy.clear();
  size_t at = 0;
  while (true) {
    copy.append(text, at, valid);
    at += valid;
    if (at == text.size()) return copy;
    at += std::max<size_t>(1, Utf8SequenceAt(text, at).bytes);
    copy += "\xEF\xBF\xBD";
    valid = ValidUtf8Bytes(text.substr(at));
  }
}

void AppendUtf8(uint32_t code, std::string& to) {
  const auto put = [&to](uint32_t byte) { to += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace apogee
