// SPDX-License-Identifier: Apache-2.0

// UTF-8 of texts from anywhere.
//
//   std::string copy;
//   text = ReadableUtf8(text, copy);               // bytes that are no UTF-8 became U+FFFD
//   while (at < text.size()) code = ReadCodePoint(text, at);
#ifndef APOGEE_CORE_TEXT_UTF8_H_
#define APOGEE_CORE_TEXT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace apogee {

// A character, or a part of one that is cut short or goes on wrongly.
struct Utf8Sequence {
  size_t bytes;  // of a valid one all; else those before the first byte that does not fit
  bool valid;
};
// The sequence that begins at `at` < text.size().
Utf8Sequence Utf8SequenceAt(std::string_view text, size_t at);

// The length of the longest prefix that is valid UTF-8.
size_t ValidUtf8Bytes(std::string_view text);
inline bool IsUtf8(std::string_view text) { return ValidUtf8Bytes(text) == text.size(); }

// `text` if it is valid UTF-8. Otherwise fills `copy`, in which each maximal subpart of an
// ill-formed sequence is one U+FFFD (Unicode 3.9, as Python and Rust do), and returns it.
std::string_view ReadableUtf8(std::string_view text, std::string& copy);

void AppendUtf8(uint32_t code, std::string& to);

// The code point at `at` of valid UTF-8; moves `at` behind it.
inline uint32_t ReadCodePoint(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const uint32_t first = byte(0);
  if (first < 0x80) {
    at += 1;
    return first;
  }
  uint32_t code;
  if (first < 0xE0) {
    code = (first & 0x1F) << 6 | (byte(1) & 0x3F);
    at += 2;
  } else if (first < 0xF0) {
    code = (first & 0xF) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    at += 3;
  } else {
    code = (first & 7) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    at += 4;
  }
  return code;
}

// The start of the code point that ends at `at` > 0 of valid UTF-8.
inline size_t PreviousCodePoint(std::string_view text, size_t at) {
  do {
    --at;
  } while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

}  // namespace apogee

#endif  // APOGEE_CORE_TEXT_UTF8_H_
