// SPDX-License-Identifier: Apache-2.0

// SentencePieceLibrary: the functions of libsentencepiece that Apogee calls. This header and its
// source include nothing of Abseil, because the library's header declares absl::string_view in its
// own way.
//
//   std::string problem;
//   auto library = OpenSentencePiece(bytes, problem);     // nullptr with a problem
#ifndef APOGEE_DATA_TOKENIZER_FORMATS_SENTENCE_PIECE_LIBRARY_H_
#define APOGEE_DATA_TOKENIZER_FORMATS_SENTENCE_PIECE_LIBRARY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace apogee::data {

// Encode appends, and returns a problem or "", as Decode does. Ids that there are not are -1.
class SentencePieceLibrary {
 public:
  virtual ~SentencePieceLibrary() = default;
  virtual std::string Encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  virtual std::string Decode(std::span<const int32_t> ids, std::string& text) const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int32_t IdOf(std::string_view piece) const = 0;
  virtual int32_t end_id() const = 0;
};

std::unique_ptr<const SentencePieceLibrary> OpenSentencePiece(std::string_view bytes,
                                                              std::string& problem);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_FORMATS_SENTENCE_PIECE_LIBRARY_H_
