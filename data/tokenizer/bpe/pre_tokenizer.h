// SPDX-License-Identifier: Apache-2.0

// PreTokenizer: divides a text into pieces, which BPE then merges one by one. Each pattern is a
// regular expression in the files; here it is a matcher of its own.
//
//   PreTokenizer split(PieceRule::kGpt2);
//   for (size_t at = 0; at < text.size(); at = end) end = split.PieceEnd(text, at);
//
// The text is valid UTF-8.
#ifndef APOGEE_DATA_TOKENIZER_BPE_PRE_TOKENIZER_H_
#define APOGEE_DATA_TOKENIZER_BPE_PRE_TOKENIZER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "apogee/core/text/utf8.h"
#include "apogee/data/tokenizer/unicode/code_points.h"

namespace apogee::data {

enum class PieceRule {
  kWhole,   // one piece
  kGpt2,    // contractions in lower case; runs of letters, of digits, of others, each with a space
  kLlama3,  // a letter run takes any character before it; at most three digits; newlines together
  kQwen2,   // as kLlama3, but each digit is a piece
};

// The regular expression that files give for the rule; "" for kWhole.
const char* PatternOf(PieceRule rule);
// The rule of a file's regular expression; empty if it is none of them.
std::optional<PieceRule> RuleOfPattern(std::string_view pattern);

class PreTokenizer {
 public:
  // A rule other than kWhole needs CodePointClasses::Get().
  explicit PreTokenizer(PieceRule rule) : rule_(rule), classes_(CodePointClasses::Get()) {}

  // The end of the piece that begins at `at` < text.size().
  size_t PieceEnd(std::string_view text, size_t at) const {
    switch (rule_) {
      case PieceRule::kWhole:
        return text.size();
      case PieceRule::kGpt2:
        return Gpt2End(text, at);
      case PieceRule::kLlama3:
        return Llama3End(text, at, 3);
      case PieceRule::kQwen2:
        return Llama3End(text, at, 1);
    }
    return text.size();
  }

 private:
  struct Char {
    uint32_t code;
    uint8_t classes;
    size_t end;
  };

  Char At(std::string_view text, size_t at) const {
    const uint32_t code = ReadCodePoint(text, at);
    return {code, classes_->Of(code), at};
  }
  size_t Gpt2End(std::string_view text, size_t at) const;
  size_t Llama3End(std::string_view text, size_t at, int max_digits) const;
  // The end of the run from `at` on whose characters have one of the classes, or, for `others`,
  // none of letter, number and space.
  size_t RunEnd(std::string_view text, size_t at, uint8_t classes) const;
  size_t OthersEnd(std::string_view text, size_t at) const;
  size_t SpacesEnd(std::string_view text, size_t at, bool newlines_first) const;

  PieceRule rule_;
  const CodePointClasses* classes_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BPE_PRE_TOKENIZER_H_
