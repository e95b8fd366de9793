// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/bpe/bpe_tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "apogee/core/error.h"
#include "apogee/core/text/text.h"
#include "apogee/core/text/utf8.h"
#include "apogee/data/tokenizer/bpe/byte_alphabet.h"
#include "apogee/data/tokenizer/bpe/merge.h"
#include "apogee/data/tokenizer/bpe/piece_cache.h"

namespace apogee::data {
namespace {

constexpr int32_t kNone = TokenTable::kNone;
constexpr size_t kPartBytes = 256 << 10;
constexpr size_t kKeptTokens = 64 << 10;  // of MergeScratch, 2 MiB
constexpr size_t kKeptBytes = 4 * kPartBytes;

// Names by which files call the token that ends a document.
constexpr const char* kEndNames[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};

size_t ByteAt(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

}  // namespace

struct BpeTokenizer::Scratch {
  PieceCache cache;
  MergeScratch merge;
  std::string readable, prefixed;
  std::array<std::string, 2> normalized;

  // An odd text made it large. It is not kept.
  bool IsLarge() const {
    return merge.tokens.capacity() > kKeptTokens || readable.capacity() > kKeptBytes ||
           prefixed.capacity() > kKeptBytes || normalized[0].capacity() > kKeptBytes ||
           normalized[1].capacity() > kKeptBytes;
  }
};

BpeTokenizer::BpeTokenizer(BpeParts parts)
    : parts_(std::move(parts)),
      pre_tokenizer_(parts_.rule),
      is_special_(static_cast<size_t>(parts_.tokens.size())) {
  std::vector<AddedToken> raw, normalized;
  std::array<std::string, 2> copy;
  for (const AddedToken& token : parts_.added) {
    is_special_[static_cast<size_t>(token.id)] = token.special;
    AddedToken& kept = (token.normalized ? normalized : raw).emplace_back(token);
    if (token.normalized) kept.text = Normalize(parts_.normalizer, token.text, copy);
    if (token.rstrip) rstrip_after_[ByteAt(kept.text, kept.text.size() - 1)] = true;
    for (size_t i = 1; i < kept.text.size(); ++i) {
      if (kept.text[i] == ' ' && kept.text[i - 1] != ' ') can_cut_ = false;
    }
  }
  raw_added_ = AddedTokens(std::move(raw));
  normalized_added_ = AddedTokens(std::move(normalized));
  for (const char* name : kEndNames) {
    const auto is_end = [name](const AddedToken& token) {
      return token.special && token.text == name;
    };
    const auto end = std::ranges::find_if(parts_.added, is_end);
    if (end == parts_.added.end()) continue;
    end_of_text_ = end->id;
    break;
  }
  for (const NormalizerStep& step : parts_.normalizer) {
    if (step.kind == NormalizerKind::kPrepend) prepends_ = true;
    if (step.kind == NormalizerKind::kReplace && step.from != " ") can_cut_ = false;
  }
  // A token may be longer than the part of a piece.
  if (parts_.rule == PieceRule::kWhole && parts_.ignore_merges) can_cut_ = false;
  FindSymbols();
  if (parts_.rule != PieceRule::kWhole) return;
  FindJoins();
  const std::string_view space = Normalize(parts_.normalizer, " ", copy, /*skip_prepend=*/true);
  size_t at = 0;
  if (!space.empty()) space_ = SymbolsAt(space, at).first;
  if (space_ == kNone) can_cut_ = false;
}

BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::FindSymbols() {
  symbols_.fill(kNone);
  fallback_.fill(kNone);
  if (parts_.byte_level) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const char text = static_cast<char>(byte);
      symbols_[byte] = parts_.tokens.Find({&text, 1});
    }
    return;
  }
  std::vector<std::pair<uint32_t, int32_t>> characters;
  for (int32_t id = 0; id < parts_.tokens.size(); ++id) {
    const std::string_view text = parts_.tokens.Text(id);
    if (text.empty() || parts_.tokens.Find(text) != id) continue;
    size_t at = 0;
    const uint32_t code = ReadCodePoint(text, at);
    if (at == text.size()) characters.emplace_back(code, id);
    const int byte = ByteOfFallback(text);
    if (parts_.byte_fallback && byte >= 0) fallback_[static_cast<size_t>(byte)] = id;
  }
  characters_ = MergeTable(characters.size());
  for (const auto& [code, id] : characters) {
    if (code < 128) symbols_[code] = id;
    characters_.Insert(0, static_cast<int32_t>(code), {0, id});
  }
}

// A merged token begins with the symbol of its first character, and ends with that of its last
// one. A token that is itself a symbol may also be part of a merge: a byte or the unknown token.
void BpeTokenizer::FindJoins() {
  const auto ends_of = [this](int32_t token, bool last) {
    std::array<int32_t, 2> ends{kNone, kNone};
    const std::string_view text = parts_.tokens.Text(token);
    if (parts_.byte_level) {
      ends[0] = symbols_[ByteAt(text, last ? text.size() - 1 : 0)];
    } else {
      size_t at = last ? PreviousCodePoint(text, text.size()) : 0;
      ends[0] = CharacterToken(ReadCodePoint(text, at));
    }
    if (ByteOfFallback(text) >= 0 || token == parts_.unknown) ends[1] = token;
    return ends;
  };
  std::vector<std::array<int32_t, 2>> joins;
  for (const auto& [left, right] : parts_.pairs) {
    for (const int32_t last : ends_of(left, true)) {
      for (const int32_t first : ends_of(right, false)) {
        if (last != kNone && first != kNone) joins.push_back({last, first});
      }
    }
  }
  std::ranges::sort(joins);
  joins.erase(std::unique(joins.begin(), joins.end()), joins.end());
  joins_ = MergeTable(joins.size());
  for (const auto& [left, right] : joins) joins_.Insert(left, right, {0, 0});
  std::vector<std::array<int32_t, 2>>().swap(parts_.pairs);
}

int32_t BpeTokenizer::CharacterToken(uint32_t code) const {
  if (code < 128) return symbols_[code];
  return characters_.Find(0, static_cast<int32_t>(code)).token;
}

// The symbols of the character or byte at `at`; moves `at` behind it.
BpeTokenizer::Symbols BpeTokenizer::SymbolsAt(std::string_view text, size_t& at) const {
  const size_t begin = at;
  int32_t token;
  if (parts_.byte_level) {
    token = symbols_[ByteAt(text, at++)];
  } else {
    token = CharacterToken(ReadCodePoint(text, at));
    if (token == kNone && parts_.byte_fallback) {
      return {fallback_[ByteAt(text, begin)], fallback_[ByteAt(text, at - 1)]};
    }
  }
  if (token == kNone) token = parts_.unknown;
  return {token, token};
}

// The last place where a space follows another visible character of ASCII. A piece begins there,
// NFC changes nothing across it, and no added token reaches over it.
size_t BpeTokenizer::CutBefore(std::string_view text) const {
  if (!can_cut_) return 0;
  for (size_t cut = text.size(); cut-- > 1;) {
    const size_t before = ByteAt(text, cut - 1);
    if (text[cut] != ' ' || before <= ' ' || before >= 0x7F || rstrip_after_[before]) continue;
    if (parts_.rule != PieceRule::kWhole) return cut;
    size_t at = 0;
    const int32_t left = SymbolsAt(text.substr(cut - 1, 1), at).last;
    if (left != kNone && !(left == parts_.unknown && space_ == left) &&
        joins_.Find(left, space_).rank == MergeTable::kNone) {
      return cut;
    }
  }
  return 0;
}

// A text that goes on is not prefixed again, which SafeCut's callers cannot say.
size_t BpeTokenizer::SafeCut(std::string_view text) const {
  return prepends_ ? 0 : CutBefore(text);
}

void BpeTokenizer::Encode(std::string_view text, std::vector<int32_t>& ids) const {
  std::unique_ptr<Scratch> scratch;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      scratch = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (scratch == nullptr) scratch = std::make_unique<Scratch>();
  bool goes_on = false;
  size_t part_bytes = kPartBytes;
  while (text.size() > part_bytes) {
    const size_t cut = CutBefore(text.substr(0, part_bytes));
    if (cut == 0) {
      part_bytes *= 2;
      continue;
    }
    goes_on = EncodePart(text.substr(0, cut), goes_on, *scratch, ids);
    text.remove_prefix(cut);
    part_bytes = kPartBytes;
  }
  EncodePart(text, goes_on, *scratch, ids);
  if (scratch->IsLarge()) return;
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

bool BpeTokenizer::EncodePart(std::string_view text, bool goes_on, Scratch& scratch,
                              std::vector<int32_t>& ids) const {
  text = ReadableUtf8(text, scratch.readable);
  AddedTokens::Search search;
  size_t at = 0;
  while (const auto match = raw_added_.Next(text, search)) {
    if (match->begin > at) EncodeBetween(text.substr(at, match->begin - at), goes_on, scratch, ids);
    ids.push_back(match->id);
    at = match->end;
    goes_on = false;
  }
  return at < text.size() && EncodeBetween(text.substr(at), goes_on, scratch, ids);
}

// A stretch between added tokens that are not normalised.
bool BpeTokenizer::EncodeBetween(std::string_view text, bool goes_on, Scratch& scratch,
                                 std::vector<int32_t>& ids) const {
  text = Normalize(parts_.normalizer, text, scratch.normalized, goes_on);
  AddedTokens::Search search;
  size_t at = 0;
  while (const auto match = normalized_added_.Next(text, search)) {
    if (match->begin > at) EncodeStretch(text.substr(at, match->begin - at), scratch, ids);
    ids.push_back(match->id);
    at = match->end;
  }
  if (at < text.size()) EncodeStretch(text.substr(at), scratch, ids);
  return true;
}

void BpeTokenizer::EncodeStretch(std::string_view text, Scratch& scratch,
                                 std::vector<int32_t>& ids) const {
  if (parts_.add_prefix_space && text[0] != ' ') {
    scratch.prefixed = ' ';
    scratch.prefixed += text;
    text = scratch.prefixed;
  }
  if (parts_.rule == PieceRule::kWhole) {
    EncodeWhole(text, scratch, ids);
    return;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = pre_tokenizer_.PieceEnd(text, at);
    EncodePiece(text, at, end, scratch, ids);
    at = end;
  }
}

// The one piece is encoded in parts, between which nothing merges.
void BpeTokenizer::EncodeWhole(std::string_view text, Scratch& scratch,
                               std::vector<int32_t>& ids) const {
  if (parts_.ignore_merges) {
    const int32_t token = parts_.tokens.Find(text);
    if (token != kNone) {
      ids.push_back(token);
      return;
    }
  }
  size_t begin = 0;
  int32_t last = kNone;  // the symbol before
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const Symbols symbols = SymbolsAt(text, at);
    if (symbols.first == kNone) continue;  // left out: its neighbours may merge
    const bool fuses = parts_.fuse_unknown && last == parts_.unknown && symbols.first == last;
    if (last != kNone && !fuses && joins_.Find(last, symbols.first).rank == MergeTable::kNone) {
      EncodePiece(text, begin, here, scratch, ids);
      begin = here;
    }
    last = symbols.last;
  }
  if (begin < text.size()) EncodePiece(text, begin, text.size(), scratch, ids);
}

void BpeTokenizer::EncodePiece(std::string_view text, size_t begin, size_t end, Scratch& scratch,
                               std::vector<int32_t>& ids) const {
  const size_t size = end - begin;
  const std::vector<int32_t>& tokens = scratch.merge.tokens;
  if (size > PieceCache::kMaxBytes) {
    MergePiece(text.substr(begin, size), scratch);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    return;
  }
  const PieceCache::Key key(text.data() + begin, size, text.size() - begin);
  PieceCache::Entry& entry = scratch.cache.At(key);
  if (entry.key == key) {
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  MergePiece(text.substr(begin, size), scratch);
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  if (tokens.size() > PieceCache::kMaxIds) return;
  entry.key = key;
  entry.count = static_cast<uint32_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(), entry.ids.begin());
}

// Leaves the tokens of the piece in scratch.merge.tokens.
void BpeTokenizer::MergePiece(std::string_view piece, Scratch& scratch) const {
  std::vector<int32_t>& tokens = scratch.merge.tokens;
  tokens.clear();
  if (parts_.ignore_merges && parts_.rule != PieceRule::kWhole) {
    tokens.push_back(parts_.tokens.Find(piece));
    if (tokens[0] != kNone) return;
    tokens.clear();
  }
  bool is_after_unknown = false;
  for (size_t at = 0; at < piece.size();) {
    const size_t begin = at;
    const uint32_t code = parts_.byte_level ? 0 : ReadCodePoint(piece, at);
    const int32_t token = parts_.byte_level ? symbols_[ByteAt(piece, at++)] : CharacterToken(code);
    if (token != kNone) {
      tokens.push_back(token);
      is_after_unknown = false;
    } else if (parts_.byte_fallback) {
      for (size_t i = begin; i < at; ++i) tokens.push_back(fallback_[ByteAt(piece, i)]);
    } else if (parts_.unknown != kNone && !(parts_.fuse_unknown && is_after_unknown)) {
      tokens.push_back(parts_.unknown);
      is_after_unknown = true;
    }
  }
  MergePairs(parts_.merges, scratch.merge);
}

std::string BpeTokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  const bool is_bytes =
      parts_.decoder.size() == 1 && parts_.decoder[0].kind == DecoderKind::kByteLevel;
  std::string bytes;
  std::vector<std::string> texts;
  for (const int32_t id : ids) {
    APOGEE_CHECK(id >= 0 && id < vocab_size(), "Decode: token ", id, " is outside of [0, ",
                 vocab_size(), "), the vocabulary of this tokenizer");
    if (skip_special && is_special_[static_cast<size_t>(id)]) continue;
    if (is_bytes) {
      bytes += parts_.tokens.Text(id);
    } else if (parts_.tokens.contains(id)) {
      texts.emplace_back(parts_.tokens.Text(id));
    }
  }
  if (!is_bytes) return DecodeTexts(parts_.decoder, std::move(texts));
  std::string copy;
  return ReadableUtf8(bytes, copy).data() == bytes.data() ? bytes : copy;
}

std::optional<int32_t> BpeTokenizer::IdOf(std::string_view token) const {
  for (const AddedToken& added : parts_.added) {
    if (added.text == token) return added.id;
  }
  int32_t id = kNone;
  if (!parts_.byte_level) {
    id = parts_.tokens.Find(token);
  } else if (IsUtf8(token)) {
    if (const auto bytes = BytesOfName(token)) id = parts_.tokens.Find(*bytes);
  }
  if (id == kNone) return std::nullopt;
  return id;
}

std::string BpeTokenizer::description() const {
  return parts_.kind + ", " + FormatThousands(vocab_size()) + " tokens";
}

}  // namespace apogee::data
