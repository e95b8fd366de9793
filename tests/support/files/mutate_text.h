// SPDX-License-Identifier: Apache-2.0

// Small random changes to a text, to compare two parsers on it. The same seed gives the same text.
//
//   std::mt19937_64 random(1);
//   std::string changed = MutatedText(header, {"null", "[", "\\u0000"}, random);
#ifndef APOGEE_TESTS_SUPPORT_FILES_MUTATE_TEXT_H_
#define APOGEE_TESTS_SUPPORT_FILES_MUTATE_TEXT_H_

#include <random>
#include <string>
#include <vector>

namespace apogee::testing {

// Makes one to three changes; inserts `tokens` at random positions.
inline std::string MutatedText(std::string text, const std::vector<std::string>& tokens,
                               std::mt19937_64& random) {
  const auto below = [&random](size_t limit) { return limit == 0 ? 0 : random() % limit; };
  for (size_t changes = 1 + below(3); changes > 0; --changes) {
    const size_t at = below(text.size() + 1), length = below(6);
    switch (below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + length);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size() + 1), 1 + below(60)));
        break;
      case 3:
        if (at < text.size()) text[at] = "0123456789"[below(10)];
        break;
      case 4:
        if (at < text.size()) text[at] = "abc {}[],:\"\\"[below(12)];
        break;
      default:
        text.insert(at, tokens[below(tokens.size())]);
    }
  }
  return text;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_MUTATE_TEXT_H_
