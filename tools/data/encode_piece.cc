// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/data/encode_piece.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "apogee/data/json_lines/json_line.h"

namespace apogee::tools {
namespace {

class Encoder {
 public:
  Encoder(const data::Tokenizer& tokenizer, const EncodeOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  EncodedPiece encoded;

  void Begin() {
    if (options_.begins_with_end_of_text) EndOfText();
  }
  // In parts where the tokenizer can be cut, so that a long text does not need memory several times
  // its size.
  void Text(std::string_view text) {
    constexpr size_t kPart = size_t{1} << 17;
    while (text.size() > kPart) {
      const size_t cut = tokenizer_.SafeCut(text.substr(0, kPart));
      if (cut == 0) break;
      tokenizer_.Encode(text.substr(0, cut), encoded.ids);
      text.remove_prefix(cut);
    }
    tokenizer_.Encode(text, encoded.ids);
  }
  void End() {
    if (!options_.begins_with_end_of_text) EndOfText();
    encoded.ends.push_back(encoded.ids.size());
  }
  // False: the empty document is an error.
  bool Skip() {
    ++encoded.num_skipped;
    return options_.skip_empty;
  }

 private:
  void EndOfText() {
    if (options_.end_of_text.has_value()) encoded.ids.push_back(*options_.end_of_text);
  }

  const data::Tokenizer& tokenizer_;
  const EncodeOptions& options_;
};

}  // namespace

absl::StatusOr<EncodedPiece> EncodePiece(const data::Tokenizer& tokenizer, const TextPiece& piece,
                                         const EncodeOptions& options) {
  Encoder encoder(tokenizer, options);
  const auto empty = [](const std::string& where) {
    return InvalidArgument(where,
                           ": has no text; remove it, or leave out such documents with "
                           "--skip-empty");
  };
  if (piece.file.kind == InputKind::kText) {
    if (piece.text.empty()) {
      if (!encoder.Skip()) return empty(piece.file.path);
      return std::move(encoder.encoded);
    }
    if (piece.begins_document) encoder.Begin();
    encoder.Text(piece.text);
    if (piece.ends_document) encoder.End();
    return std::move(encoder.encoded);
  }
  const std::vector<std::string> names = {options.field};
  int64_t line = piece.first_line;
  for (size_t at = 0; at < piece.text.size(); ++line) {
    const size_t end = std::min(piece.text.find('\n', at), piece.text.size());
    std::string text = piece.text.substr(at, end - at);
    at = end + 1;
    const std::string where = internal::Concat(piece.file.path, ": line ", line);
    if (piece.file.kind == InputKind::kJsonl && !text.empty()) {
      absl::StatusOr<data::JsonLine> fields = data::ReadJsonLine(text, names);
      if (!fields.ok()) return InvalidArgument(where, ": ", Message(fields.status()));
      if (!fields->values[0].has_value()) {
        return InvalidArgument(where, ": has no field \"", options.field, "\"");
      }
      text = *std::move(fields->values[0]);
    }
    if (text.empty()) {
      if (!encoder.Skip()) return empty(where);
      continue;
    }
    encoder.Begin();
    encoder.Text(text);
    encoder.End();
  }
  return std::move(encoder.encoded);
}

}  // namespace apogee::tools
