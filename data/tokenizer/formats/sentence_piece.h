// SPDX-License-Identifier: Apache-2.0

// ParseSentencePiece: a .model file of SentencePiece, through Debian's library (libsentencepiece).
// A build without it refuses such files.
//
//   APOGEE_ASSIGN_OR_RETURN(TokenizerPtr tokenizer, ParseSentencePiece(bytes, "spiece.model"));
//
// The library replaces each byte that is no UTF-8 by U+FFFD, not each maximal subpart, and does not
// look for its control symbols ("<s>") in texts.
#ifndef APOGEE_DATA_TOKENIZER_FORMATS_SENTENCE_PIECE_H_
#define APOGEE_DATA_TOKENIZER_FORMATS_SENTENCE_PIECE_H_

#include <string>

#include "apogee/core/status.h"
#include "apogee/data/tokenizer/tokenizer.h"

namespace apogee::data {

// `path` names the file in messages.
absl::StatusOr<TokenizerPtr> ParseSentencePiece(const std::string& bytes, const std::string& path);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_FORMATS_SENTENCE_PIECE_H_
