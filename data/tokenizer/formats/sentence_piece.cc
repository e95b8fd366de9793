// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/formats/sentence_piece.h"

#include <utility>

#include "apogee/core/error.h"
#include "apogee/core/text/text.h"
#include "apogee/data/tokenizer/formats/sentence_piece_library.h"

namespace apogee::data {
namespace {

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(std::unique_ptr<const SentencePieceLibrary> library)
      : library_(std::move(library)) {}

  void Encode(std::string_view text, std::vector<int32_t>& ids) const override {
    const std::string problem = library_->Encode(text, ids);
    APOGEE_CHECK(problem.empty(), "SentencePiece: ", problem);
  }
  // The library leaves out control symbols in any case.
  std::string Decode(std::span<const int32_t> ids, bool /*skip_special*/) const override {
    for (const int32_t id : ids) {
      APOGEE_CHECK(id >= 0 && id < vocab_size(), "Decode: token ", id, " is outside of [0, ",
                   vocab_size(), "), the vocabulary of this tokenizer");
    }
    std::string text;
    const std::string problem = library_->Decode(ids, text);
    APOGEE_CHECK(problem.empty(), "SentencePiece: ", problem);
    return text;
  }
  int64_t vocab_size() const override { return library_->vocab_size(); }
  std::optional<int32_t> IdOf(std::string_view token) const override {
    const int32_t id = library_->IdOf(token);
    if (id < 0) return std::nullopt;
    return id;
  }
  std::optional<int32_t> end_of_text() const override {
    const int32_t id = library_->end_id();
    if (id < 0) return std::nullopt;
    return id;
  }
  std::string description() const override {
    return "SentencePiece, " + FormatThousands(vocab_size()) + " tokens";
  }

 private:
  std::unique_ptr<const SentencePieceLibrary> library_;
};

}  // namespace

absl::StatusOr<TokenizerPtr> ParseSentencePiece(const std::string& bytes, const std::string& path) {
  std::string problem;
  std::unique_ptr<const SentencePieceLibrary> library = OpenSentencePiece(bytes, problem);
  if (library == nullptr) return InvalidArgument("tokenizer: ", path, ": ", problem);
  return std::make_shared<const SentencePieceTokenizer>(std::move(library));
}

}  // namespace apogee::data
