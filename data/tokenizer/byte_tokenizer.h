// SPDX-License-Identifier: Apache-2.0

// ByteTokenizer: a token is a byte, so every file is text. Vocabulary 256, no special tokens.
//
//   ByteTokenizer tokenizer;
//   std::vector<int32_t> ids;
//   tokenizer.Encode("ab", ids);                  // 97, 98
#ifndef APOGEE_DATA_TOKENIZER_BYTE_TOKENIZER_H_
#define APOGEE_DATA_TOKENIZER_BYTE_TOKENIZER_H_

#include <string>
#include <vector>

#include "apogee/data/tokenizer/tokenizer.h"

namespace apogee::data {

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 256;

  void Encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::string Decode(std::span<const int32_t> ids, bool skip_special = false) const override;
  int64_t vocab_size() const override { return kVocabSize; }
  // Of a single byte.
  std::optional<int32_t> IdOf(std::string_view token) const override;
  std::optional<int32_t> end_of_text() const override { return std::nullopt; }
  std::string description() const override { return "bytes, 256 tokens"; }
  size_t SafeCut(std::string_view text) const override { return text.size(); }
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BYTE_TOKENIZER_H_
