// SPDX-License-Identifier: Apache-2.0

// BpeTokenizer: byte-pair encoding of Hugging Face's tokenizer.json and of tiktoken.
//
//   BpeParts parts = ...;                   // from a file
//   BpeTokenizer tokenizer(std::move(parts));
//
// A text goes through these steps. Added tokens are cut out. The text between them is normalised
// and divided into pieces, and the pairs of each piece are merged.
//
// The memory of a call beyond the ids is bounded for any length of the text, because it is encoded
// in parts of 256 KiB. Only a part that has no place to cut is longer: one without a space.
#ifndef APOGEE_DATA_TOKENIZER_BPE_BPE_TOKENIZER_H_
#define APOGEE_DATA_TOKENIZER_BPE_BPE_TOKENIZER_H_

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apogee/data/tokenizer/bpe/added_tokens.h"
#include "apogee/data/tokenizer/bpe/merge_table.h"
#include "apogee/data/tokenizer/bpe/pre_tokenizer.h"
#include "apogee/data/tokenizer/bpe/text_steps.h"
#include "apogee/data/tokenizer/bpe/token_table.h"
#include "apogee/data/tokenizer/tokenizer.h"

namespace apogee::data {

struct BpeParts {
  std::string kind;  // for description()
  // The symbols that are merged: bytes, or else code points.
  bool byte_level = true;
  // By their texts: bytes, or names if not byte_level. Added tokens are in it, too; those that the
  // model does not have are not findable.
  TokenTable tokens;
  MergeTable merges;
  // The pairs of `merges`, needed for PieceRule::kWhole.
  std::vector<std::array<int32_t, 2>> pairs;
  PieceRule rule = PieceRule::kWhole;
  bool add_prefix_space = false;
  // A piece that is a token is taken whole.
  bool ignore_merges = false;
  // Without byte_level: a character without a token becomes its bytes, "<0x0A>".
  bool byte_fallback = false;
  // The token of a symbol that has none; kNone: such a symbol is left out.
  int32_t unknown = TokenTable::kNone;
  bool fuse_unknown = false;
  std::vector<NormalizerStep> normalizer;
  std::vector<DecoderStep> decoder;
  std::vector<AddedToken> added;
  std::vector<int32_t> prefix, suffix;
};

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts);
  ~BpeTokenizer() override;

  void Encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::string Decode(std::span<const int32_t> ids, bool skip_special = false) const override;
  int64_t vocab_size() const override { return parts_.tokens.size(); }
  std::optional<int32_t> IdOf(std::string_view token) const override;
  std::optional<int32_t> end_of_text() const override { return end_of_text_; }
  std::string description() const override;
  std::vector<int32_t> prefix() const override { return parts_.prefix; }
  std::vector<int32_t> suffix() const override { return parts_.suffix; }
  size_t SafeCut(std::string_view text) const override;

 private:
  struct Scratch;
  struct Symbols {  // of one character
    int32_t first, last;
  };

  void FindSymbols();
  void FindJoins();
  size_t CutBefore(std::string_view text) const;
  // Return whether the text ended with an ordinary stretch.
  bool EncodePart(std::string_view text, bool goes_on, Scratch& scratch,
                  std::vector<int32_t>& ids) const;
  bool EncodeBetween(std::string_view text, bool goes_on, Scratch& scratch,
                     std::vector<int32_t>& ids) const;
  void EncodeStretch(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;
  void EncodeWhole(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;
  void EncodePiece(std::string_view text, size_t begin, size_t end, Scratch& scratch,
                   std::vector<int32_t>& ids) const;
  void MergePiece(std::string_view piece, Scratch& scratch) const;
  Symbols SymbolsAt(std::string_view text, size_t& at) const;
  int32_t CharacterToken(uint32_t code) const;

  BpeParts parts_;
  PreTokenizer pre_tokenizer_;
  AddedTokens raw_added_, normalized_added_;
  std::vector<bool> is_special_;
  std::optional<int32_t> end_of_text_;
  // The tokens of single bytes, or of code points below 128; and of the other code points.
  std::array<int32_t, 256> symbols_;
  MergeTable characters_;
  std::array<int32_t, 256> fallback_;
  // The pairs of adjacent symbols that are within some token. Nothing merges across other pairs.
  MergeTable joins_;
  int32_t space_ = TokenTable::kNone;  // the first symbol of a space, for PieceRule::kWhole
  bool can_cut_ = true, prepends_ = false;
  std::array<bool, 256> rstrip_after_{};  // last bytes of tokens with rstrip

  // Memory of calls that are over; a call takes one or makes its own.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> free_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BPE_BPE_TOKENIZER_H_
