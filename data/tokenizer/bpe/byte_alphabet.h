// SPDX-License-Identifier: Apache-2.0

// The printable alphabet in which byte-level BPE writes bytes: in tokenizer.json the token " the"
// is "Ġthe". A byte that is a printable character of Latin-1 stands for itself. The others are the
// code points from U+0100 on, in the order of their values.
//
//   BytesOfName("Ġthe")     // " the"; empty if a character is not of the alphabet
//   NameOfBytes(" the")     // "Ġthe"
#ifndef APOGEE_DATA_TOKENIZER_BPE_BYTE_ALPHABET_H_
#define APOGEE_DATA_TOKENIZER_BPE_BYTE_ALPHABET_H_

#include <optional>
#include <string>
#include <string_view>

namespace apogee::data {

// `name` is valid UTF-8.
std::optional<std::string> BytesOfName(std::string_view name);
std::string NameOfBytes(std::string_view bytes);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BPE_BYTE_ALPHABET_H_
