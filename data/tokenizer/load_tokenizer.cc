// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/load_tokenizer.h"

#include <span>

#include "apogee/core/process/raw_file.h"
#include "apogee/data/tokenizer/byte_tokenizer.h"
#include "apogee/data/tokenizer/formats/sentence_piece.h"
#include "apogee/data/tokenizer/formats/tiktoken.h"
#include "apogee/data/tokenizer/formats/tokenizer_json.h"

namespace apogee::data {
namespace {

// The largest files that people use have 35 MB.
constexpr int64_t kMaxFileBytes = int64_t{96} << 20;

// The first field of a SentencePiece model: a list of pieces, in the coding of protocol buffers.
constexpr char kPiecesTag = 0x0A;

absl::StatusOr<std::string> ReadTokenizerFile(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const OpenedFile file, OpenRegularFile(path));
  if (file.size > kMaxFileBytes) {
    return InvalidArgument("tokenizer: ", path, " has ", file.size,
                           " bytes; a tokenizer has at most ", kMaxFileBytes);
  }
  std::string text(static_cast<size_t>(file.size), '\0');
  APOGEE_RETURN_IF_ERROR(
      ReadAt(file.descriptor.fd(), path, 0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace

absl::StatusOr<TokenizerPtr> LoadTokenizer(const std::string& path) {
  if (path == "byte") return std::make_shared<const ByteTokenizer>();
  APOGEE_ASSIGN_OR_RETURN(const std::string text, ReadTokenizerFile(path));
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && text[first] == '{') return ParseTokenizerJson(text, path);
  if (LooksLikeTiktoken(text)) return ParseTiktoken(text, path, {});
  if (!text.empty() && text[0] == kPiecesTag) return ParseSentencePiece(text, path);
  return InvalidArgument("tokenizer: ", path,
                         " is no tokenizer: expected a tokenizer.json, ranks of tiktoken or a "
                         "SentencePiece model");
}

absl::StatusOr<TokenizerPtr> LoadTiktoken(const std::string& path, const TiktokenOptions& options) {
  APOGEE_ASSIGN_OR_RETURN(const std::string text, ReadTokenizerFile(path));
  return ParseTiktoken(text, path, options);
}

}  // namespace apogee::data
