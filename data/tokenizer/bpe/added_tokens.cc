// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/bpe/added_tokens.h"

#include <algorithm>
#include <utility>

#include "apogee/core/text/utf8.h"
#include "apogee/data/tokenizer/unicode/code_points.h"

namespace apogee::data {
namespace {

size_t FirstByte(const std::string& text) { return static_cast<unsigned char>(text[0]); }

bool HasClass(uint32_t code, uint8_t classes) {
  return (CodePointClasses::Get()->Of(code) & classes) != 0;
}

bool EndsWithWord(std::string_view text) {
  if (text.empty()) return false;
  size_t at = PreviousCodePoint(text, text.size());
  return HasClass(ReadCodePoint(text, at), CodePointClasses::kWord);
}

bool BeginsWithWord(std::string_view text) {
  size_t at = 0;
  return !text.empty() && HasClass(ReadCodePoint(text, at), CodePointClasses::kWord);
}

size_t SpacesBegin(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t before = PreviousCodePoint(text, end);
    size_t at = before;
    if (!HasClass(ReadCodePoint(text, at), CodePointClasses::kSpace)) break;
    end = before;
  }
  return end;
}

size_t SpacesEnd(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    if (!HasClass(ReadCodePoint(text, next), CodePointClasses::kSpace)) break;
    at = next;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), first_with_(257, 0) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.text < b.text; });
  for (const AddedToken& token : tokens_) ++first_with_[FirstByte(token.text) + 1];
  for (size_t i = 1; i < first_with_.size(); ++i) first_with_[i] += first_with_[i - 1];
}

// Narrows the range of tokens that agree with the text byte by byte. A token that ends is the
// first of its range.
const AddedToken* AddedTokens::LongestAt(std::string_view text, size_t at) const {
  const auto first = static_cast<unsigned char>(text[at]);
  auto begin = tokens_.begin() + first_with_[first];
  auto end = tokens_.begin() + first_with_[first + 1u];
  const AddedToken* longest = nullptr;
  for (size_t depth = 1; begin != end; ++depth) {
    if (begin->text.size() == depth) longest = &*begin++;
    if (begin == end || at + depth >= text.size()) break;
    const auto byte_of = [depth](const AddedToken& token) {
      return static_cast<unsigned char>(token.text[depth]);
    };
    const auto byte = static_cast<unsigned char>(text[at + depth]);
    begin = std::lower_bound(begin, end, byte, [&](const AddedToken& token, unsigned char value) {
      return byte_of(token) < value;
    });
    end = std::upper_bound(begin, end, byte, [&](unsigned char value, const AddedToken& token) {
      return value < byte_of(token);
    });
  }
  return longest;
}

std::optional<AddedTokens::Match> AddedTokens::Next(std::string_view text, Search& search) const {
  if (tokens_.empty()) return std::nullopt;
  while (search.at < text.size()) {
    const auto byte = static_cast<unsigned char>(text[search.at]);
    const AddedToken* token =
        first_with_[byte] == first_with_[byte + 1u] ? nullptr : LongestAt(text, search.at);
    if (token == nullptr) {
      ++search.at;
      continue;
    }
    Match match{search.at, search.at + token->text.size(), token->id};
    search.at = match.end;
    if (token->single_word &&
        (EndsWithWord(text.substr(0, match.begin)) || BeginsWithWord(text.substr(match.end)))) {
      continue;
    }
    // The spaces before it may belong to the match before.
    if (token->lstrip) match.begin = std::max(SpacesBegin(text, match.begin), search.covered);
    if (token->rstrip) match.end = SpacesEnd(text, match.end);
    search.covered = match.end;
    return match;
  }
  return std::nullopt;
}

}  // namespace apogee::data
