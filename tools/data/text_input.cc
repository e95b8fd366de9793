// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/data/text_input.h"

#include <algorithm>

#include "apogee/core/text/text.h"

namespace apogee::tools {

int64_t TextInput::CutOf(const std::string& window, InputKind kind, bool is_rest) const {
  if (is_rest) return static_cast<int64_t>(window.size());
  if (kind == InputKind::kText) return static_cast<int64_t>(tokenizer_.SafeCut(window));
  const size_t newline = window.rfind('\n');
  return newline == std::string::npos ? 0 : static_cast<int64_t>(newline) + 1;
}

absl::Status TextInput::TooLong(const InputFile& file) const {
  const std::string limit = FormatBytes(options_.max_document_bytes);
  if (file.kind == InputKind::kText) {
    return absl::ResourceExhaustedError(
        internal::Concat(file.path, ": from byte ", position_.byte, " on the tokenizer (",
                         tokenizer_.description(), ") knows no place to cut within ", limit,
                         "; divide the document, or raise --max-document-mib, which takes memory"));
  }
  return absl::ResourceExhaustedError(
      internal::Concat(file.path, ": line ", position_.line, " is longer than ", limit,
                       "; divide it, or raise --max-document-mib, which takes memory"));
}

absl::StatusOr<bool> TextInput::Next(TextPiece& piece) {
  if (position_.file >= static_cast<int64_t>(files_.size())) return false;
  const InputFile& file = files_[static_cast<size_t>(position_.file)];
  if (open_ == nullptr) {
    APOGEE_ASSIGN_OR_RETURN(open_, data::OpenBytes(file.path));
  }
  const int64_t left = open_->size() - position_.byte;
  if (left < 0) return DataLoss(file.path, ": has become shorter since the run began");
  std::string window;
  int64_t cut = 0;
  for (int64_t want = options_.piece_bytes;; want *= 2) {
    const int64_t bytes = std::min(want, left);
    const auto before = static_cast<int64_t>(window.size());
    window.resize(static_cast<size_t>(bytes));
    APOGEE_RETURN_IF_ERROR(open_->Read(
        position_.byte + before,
        std::as_writable_bytes(std::span(window)).subspan(static_cast<size_t>(before))));
    cut = CutOf(window, file.kind, /*is_rest=*/bytes == left);
    if (cut > 0 || bytes == left) break;
    if (bytes >= options_.max_document_bytes) return TooLong(file);
  }
  window.resize(static_cast<size_t>(cut));
  piece.file = file;
  piece.first_line = position_.line;
  piece.begins_document = position_.byte == 0;
  piece.ends_document = cut == left;
  if (file.kind != InputKind::kText) position_.line += std::ranges::count(window, '\n');
  piece.text = std::move(window);
  position_.byte += cut;
  if (cut == left) {
    position_ = {position_.file + 1, 0, 1};
    open_ = nullptr;
  }
  piece.next = position_;
  return true;
}

}  // namespace apogee::tools
