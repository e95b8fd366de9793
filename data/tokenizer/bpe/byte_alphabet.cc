// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/bpe/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "apogee/core/text/utf8.h"

namespace apogee::data {
namespace {

constexpr int16_t kNotInAlphabet = -1;

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint16_t, 256> code_of;
  std::array<int16_t, 0x144> byte_of;
};

constexpr Alphabet kAlphabet = [] {
  Alphabet alphabet{};
  alphabet.byte_of.fill(kNotInAlphabet);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code = StandsForItself(byte) ? byte : next++;
    alphabet.code_of[static_cast<size_t>(byte)] = static_cast<uint16_t>(code);
    alphabet.byte_of[static_cast<size_t>(code)] = static_cast<int16_t>(byte);
  }
  return alphabet;
}();

}  // namespace

std::optional<std::string> BytesOfName(std::string_view name) {
  std::string bytes;
  for (size_t at = 0; at < name.size();) {
    const uint32_t code = ReadCodePoint(name, at);
    if (code >= kAlphabet.byte_of.size() || kAlphabet.byte_of[code] == kNotInAlphabet) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kAlphabet.byte_of[code]);
  }
  return bytes;
}

std::string NameOfBytes(std::string_view bytes) {
  std::string name;
  for (const char byte : bytes) {
    AppendUtf8(kAlphabet.code_of[static_cast<unsigned char>(byte)], name);
  }
  return name;
}

}  // namespace apogee::data
