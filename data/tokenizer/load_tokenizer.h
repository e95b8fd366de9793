// SPDX-License-Identifier: Apache-2.0

// LoadTokenizer: the tokenizer of a file, recognised by its content.
//
//   APOGEE_ASSIGN_OR_RETURN(TokenizerPtr tokenizer, LoadTokenizer("gpt2/tokenizer.json"));
//   APOGEE_ASSIGN_OR_RETURN(TokenizerPtr bytes, LoadTokenizer("byte"));
//
//   byte              no file: a token is a byte
//   tokenizer.json    of Hugging Face: BPE with the pre-tokenizer of GPT-2, Llama 3 or Qwen2, or
//                     with bytes as fallback (Llama 2)
//   ranks             of tiktoken: lines of a token in base64, a space and its rank
//   .model            of SentencePiece
//
// Errors: NotFound for a missing file, else InvalidArgument that names the file and the field. A
// field that Apogee does not know, or a value that it does not support, is refused by name.
#ifndef APOGEE_DATA_TOKENIZER_LOAD_TOKENIZER_H_
#define APOGEE_DATA_TOKENIZER_LOAD_TOKENIZER_H_

#include <optional>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/data/tokenizer/tokenizer.h"

namespace apogee::data {

absl::StatusOr<TokenizerPtr> LoadTokenizer(const std::string& path);

// Facts that a file of ranks lacks.
struct TiktokenOptions {
  // The regular expression that divides a text: that of GPT-2, Llama 3 (default) or Qwen2.
  std::string pattern = {};
  // Their ids follow the ranks, in this order. Default: for a file of 128,000 ranks the 256 of
  // Llama 3; else <|begin_of_text|>, <|end_of_text|>, <|eot_id|>, <|start_header_id|> and
  // <|end_header_id|>.
  std::optional<std::vector<std::string>> special_tokens = {};
};

// As LoadTokenizer, for a file of ranks.
absl::StatusOr<TokenizerPtr> LoadTiktoken(const std::string& path, const TiktokenOptions& options);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_LOAD_TOKENIZER_H_
