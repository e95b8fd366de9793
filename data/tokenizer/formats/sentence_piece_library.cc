// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/formats/sentence_piece_library.h"

#if APOGEE_HAS_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

namespace apogee::data {

#if APOGEE_HAS_SENTENCEPIECE
namespace {

class Library : public SentencePieceLibrary {
 public:
  std::string Open(std::string_view bytes) {
    return Problem(processor_.LoadFromSerializedProto(bytes));
  }
  std::string Encode(std::string_view text, std::vector<int32_t>& ids) const override {
    std::vector<int> own;
    const std::string problem = Problem(processor_.Encode(text, &own));
    ids.insert(ids.end(), own.begin(), own.end());
    return problem;
  }
  std::string Decode(std::span<const int32_t> ids, std::string& text) const override {
    return Problem(processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text));
  }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  int32_t IdOf(std::string_view piece) const override {
    const int id = processor_.PieceToId(piece);  // that of the unknown piece if there is none
    return processor_.IdToPiece(id) == piece ? id : -1;
  }
  int32_t end_id() const override { return processor_.eos_id(); }

 private:
  static std::string Problem(const sentencepiece::util::Status& status) {
    return status.ok() ? "" : status.ToString();
  }

  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<const SentencePieceLibrary> OpenSentencePiece(std::string_view bytes,
                                                              std::string& problem) {
  auto library = std::make_unique<Library>();
  problem = library->Open(bytes);
  if (!problem.empty()) return nullptr;
  return library;
}

#else

std::unique_ptr<const SentencePieceLibrary> OpenSentencePiece(std::string_view /*bytes*/,
                                                              std::string& problem) {
  problem =
      "is a SentencePiece model, and this build of Apogee has no libsentencepiece; install "
      "libsentencepiece-dev and build again";
  return nullptr;
}

#endif

}  // namespace apogee::data
