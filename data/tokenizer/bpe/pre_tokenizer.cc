// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/bpe/pre_tokenizer.h"

namespace apogee::data {
namespace {

constexpr uint8_t kLetter = CodePointClasses::kLetter;
constexpr uint8_t kNumber = CodePointClasses::kNumber;
constexpr uint8_t kSpace = CodePointClasses::kSpace;
constexpr uint8_t kAny = kLetter | kNumber | kSpace;

bool IsNewline(uint32_t code) { return code == '\n' || code == '\r'; }

// The length of 's, 't, 're, 've, 'm, 'll or 'd at `at`, where an apostrophe stands; 0 if there is
// none. Without regard to case also the long s (U+017F) is an s.
size_t ContractionBytes(std::string_view text, size_t at, bool any_case) {
  const std::string_view rest = text.substr(at + 1, 2);
  const auto lower = [any_case](char c) {
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c;
  };
  if (rest.empty()) return 0;
  const char first = lower(rest[0]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (rest.size() < 2) return 0;
  const char second = lower(rest[1]);
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
      (first == 'l' && second == 'l')) {
    return 3;
  }
  return any_case && rest == "\xC5\xBF" ? 3 : 0;
}

}  // namespace

const char* PatternOf(PieceRule rule) {
  switch (rule) {
    case PieceRule::kWhole:
      return "";
    case PieceRule::kGpt2:
      return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    case PieceRule::kLlama3:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
             R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case PieceRule::kQwen2:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
             R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  }
  return "";
}

std::optional<PieceRule> RuleOfPattern(std::string_view pattern) {
  for (const PieceRule rule : {PieceRule::kGpt2, PieceRule::kLlama3, PieceRule::kQwen2}) {
    if (pattern == PatternOf(rule)) return rule;
  }
  return std::nullopt;
}

size_t PreTokenizer::RunEnd(std::string_view text, size_t at, uint8_t classes) const {
  while (at < text.size()) {
    const Char c = At(text, at);
    if ((c.classes & classes) == 0) break;
    at = c.end;
  }
  return at;
}

size_t PreTokenizer::OthersEnd(std::string_view text, size_t at) const {
  while (at < text.size()) {
    const Char c = At(text, at);
    if ((c.classes & kAny) != 0) break;
    at = c.end;
  }
  return at;
}

// \s+(?!\S)|\s+, with `newlines_first` after \s*[\r\n]+.
size_t PreTokenizer::SpacesEnd(std::string_view text, size_t at, bool newlines_first) const {
  size_t end = at, last = at, after_newline = at;
  while (end < text.size()) {
    const Char c = At(text, end);
    if ((c.classes & kSpace) == 0) break;
    last = end;
    end = c.end;
    if (IsNewline(c.code)) after_newline = end;
  }
  if (newlines_first && after_newline > at) return after_newline;
  // Before other text the last space is left to the next piece, unless it is the only one.
  return end == text.size() || last == at ? end : last;
}

size_t PreTokenizer::Gpt2End(std::string_view text, size_t at) const {
  const Char first = At(text, at);
  if (first.code == '\'') {
    const size_t bytes = ContractionBytes(text, at, /*any_case=*/false);
    if (bytes > 0) return at + bytes;
  }
  const bool has_space = first.code == ' ' && first.end < text.size();
  const Char body = has_space ? At(text, first.end) : first;
  if ((body.classes & kLetter) != 0) return RunEnd(text, body.end, kLetter);
  if ((body.classes & kNumber) != 0) return RunEnd(text, body.end, kNumber);
  if ((body.classes & kSpace) == 0) return OthersEnd(text, body.end);
  return SpacesEnd(text, at, /*newlines_first=*/false);
}

size_t PreTokenizer::Llama3End(std::string_view text, size_t at, int max_digits) const {
  const Char first = At(text, at);
  if ((first.classes & kLetter) != 0) return RunEnd(text, first.end, kLetter);
  if (first.code == '\'') {
    const size_t bytes = ContractionBytes(text, at, /*any_case=*/true);
    if (bytes > 0) return at + bytes;
  }
  if ((first.classes & kNumber) != 0) {
    size_t end = first.end;
    for (int digits = 1; digits < max_digits && end < text.size(); ++digits) {
      const Char digit = At(text, end);
      if ((digit.classes & kNumber) == 0) break;
      end = digit.end;
    }
    return end;
  }
  const bool has_next = first.end < text.size();
  const Char next = has_next ? At(text, first.end) : Char{};
  if (has_next && !IsNewline(first.code) && (next.classes & kLetter) != 0) {
    return RunEnd(text, next.end, kLetter);
  }
  const bool is_other = (first.classes & kAny) == 0;
  if (is_other || (first.code == ' ' && has_next && (next.classes & kAny) == 0)) {
    size_t end = OthersEnd(text, is_other ? first.end : next.end);
    while (end < text.size() && IsNewline(static_cast<unsigned char>(text[end]))) ++end;
    return end;
  }
  return SpacesEnd(text, at, /*newlines_first=*/true);
}

}  // namespace apogee::data
