// SPDX-License-Identifier: Apache-2.0

// ParseTiktoken: the ranks of tiktoken. A line is a token in base64, a space and its rank, which is
// its id, too. A pair of tokens merges if its text is a token; lower ranks first.
//
//   APOGEE_ASSIGN_OR_RETURN(TokenizerPtr tokenizer, ParseTiktoken(text, "a.tiktoken", {}));
//
// The text may be hostile. Every error names the line.
#ifndef APOGEE_DATA_TOKENIZER_FORMATS_TIKTOKEN_H_
#define APOGEE_DATA_TOKENIZER_FORMATS_TIKTOKEN_H_

#include <string>
#include <string_view>

#include "apogee/data/tokenizer/load_tokenizer.h"

namespace apogee::data {

// Whether the first line of a file is one of ranks.
bool LooksLikeTiktoken(std::string_view text);

// `path` names the file in messages.
absl::StatusOr<TokenizerPtr> ParseTiktoken(std::string_view text, const std::string& path,
                                           const TiktokenOptions& options);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_FORMATS_TIKTOKEN_H_
