// SPDX-License-Identifier: Apache-2.0

// TextInput: the texts to tokenise, in pieces of bounded size.
//
//   TextInput input({{"a.txt", InputKind::kText}}, *tokenizer, {});
//   TextPiece piece;
//   while (*(has = input.Next(piece))) ...
//
// A piece is some whole lines, or a part of a text that ends where the tokenizer can be cut. So the
// ids of the pieces are the ids of the whole, and memory does not depend on the size of a file.
// What cannot be cut - a line of JSON, a text whose tokenizer knows no place - must fit
// `max_document_bytes`.
#ifndef APOGEE_TOOLS_DATA_TEXT_INPUT_H_
#define APOGEE_TOOLS_DATA_TEXT_INPUT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/data/token_files/token_bytes.h"
#include "apogee/data/tokenizer/tokenizer.h"

namespace apogee::tools {

// A document is the whole file, a line, or a field of a line.
enum class InputKind { kText, kLines, kJsonl };

struct InputFile {
  std::string path;
  InputKind kind;
};

// The begin of the next piece. It is all that a later process needs to go on.
struct InputPosition {
  int64_t file = 0;
  int64_t byte = 0;
  int64_t line = 1;  // of lines
};

struct TextPiece {
  InputFile file;
  int64_t first_line = 1;
  std::string text;
  bool begins_document = true, ends_document = true;  // of texts
  InputPosition next;
};

struct TextInputOptions {
  int64_t piece_bytes = int64_t{1} << 18;
  int64_t max_document_bytes = int64_t{8} << 20;
};

class TextInput {
 public:
  // The tokenizer must outlive it.
  TextInput(std::vector<InputFile> files, const data::Tokenizer& tokenizer,
            const TextInputOptions& options)
      : files_(std::move(files)), tokenizer_(tokenizer), options_(options) {}

  // Goes on from there.
  void Seek(const InputPosition& position) {
    position_ = position;
    open_ = nullptr;
  }
  const InputPosition& position() const { return position_; }
  // False after the last piece. Files without a byte give a piece without text.
  absl::StatusOr<bool> Next(TextPiece& piece);
  // Bytes of the file that Next read last, for progress.
  int64_t file_bytes() const { return open_ == nullptr ? 0 : open_->size(); }

 private:
  // The number of the window's bytes that make a piece; 0: read more.
  int64_t CutOf(const std::string& window, InputKind kind, bool is_rest) const;
  absl::Status TooLong(const InputFile& file) const;

  std::vector<InputFile> files_;
  const data::Tokenizer& tokenizer_;
  TextInputOptions options_;
  InputPosition position_;
  std::unique_ptr<data::RandomBytes> open_;
};

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_DATA_TEXT_INPUT_H_
