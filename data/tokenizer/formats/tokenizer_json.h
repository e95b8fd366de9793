// SPDX-License-Identifier: Apache-2.0

// ParseTokenizerJson: Hugging Face's tokenizer.json.
//
//   APOGEE_ASSIGN_OR_RETURN(TokenizerPtr tokenizer, ParseTokenizerJson(text, "tokenizer.json"));
//
// The text may be hostile. The model must be BPE. A field that Apogee does not know, or a value
// that it does not support, is InvalidArgument with the field and the value.
#ifndef APOGEE_DATA_TOKENIZER_FORMATS_TOKENIZER_JSON_H_
#define APOGEE_DATA_TOKENIZER_FORMATS_TOKENIZER_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/data/tokenizer/formats/json_fields.h"
#include "apogee/data/tokenizer/tokenizer.h"

namespace apogee::data {

// `path` names the file in messages.
absl::StatusOr<TokenizerPtr> ParseTokenizerJson(const std::string& text, const std::string& path);

// The parsed text. The vocabulary and the merges, which are long, are apart from the tree.
struct TokenizerJson {
  struct Token {
    uint32_t begin, size;  // of the name in `names`
    int64_t id;
  };
  struct Merge {
    uint32_t begin, left_size, right_size;
  };
  std::string_view Name(const Token& token) const {
    return std::string_view(names).substr(token.begin, token.size);
  }
  std::string_view Left(const Merge& merge) const {
    return std::string_view(names).substr(merge.begin, merge.left_size);
  }
  std::string_view Right(const Merge& merge) const {
    return std::string_view(names).substr(merge.begin + merge.left_size, merge.right_size);
  }

  JsonNode root;
  std::string names;
  std::vector<Token> vocab;
  std::vector<Merge> merges;
};

// Checks only the form of the text, which has less than 4 GiB.
absl::StatusOr<TokenizerJson> ReadTokenizerJson(const std::string& text);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_FORMATS_TOKENIZER_JSON_H_
