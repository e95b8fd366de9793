// SPDX-License-Identifier: Apache-2.0

// AddedTokens: tokens that are cut out of a text before it is divided into pieces, such as
// "<|endoftext|>".
//
//   AddedTokens tokens({{.id = 5, .text = "<mask>", .lstrip = true}});
//   AddedTokens::Search search;
//   size_t at = 0;
//   while (const auto match = tokens.Next(text, search)) {
//     // text[at, match->begin) is ordinary; then comes match->id
//     at = match->end;
//   }
//
// The first match counts, and of those that begin together the longest. The text is valid UTF-8.
#ifndef APOGEE_DATA_TOKENIZER_BPE_ADDED_TOKENS_H_
#define APOGEE_DATA_TOKENIZER_BPE_ADDED_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace apogee::data {

struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;      // left out by Decode with skip_special
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool single_word = false;  // only where no letter, digit or underscore is beside it
  bool normalized = false;   // searched for in the normalised text
};

class AddedTokens {
 public:
  AddedTokens() : first_with_(257, 0) {}
  // The texts are not empty and differ. lstrip, rstrip and single_word need
  // CodePointClasses::Get().
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Match {
    size_t begin;
    size_t end;
    int32_t id;
  };
  // Where a search goes on. `text` is what is searched: all calls of a search have the same.
  struct Search {
    size_t at = 0;       // what was searched
    size_t covered = 0;  // the end of the last match
  };
  std::optional<Match> Next(std::string_view text, Search& search) const;

 private:
  // The longest token that stands at `at`, or nullptr.
  const AddedToken* LongestAt(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;    // by their texts
  std::vector<uint32_t> first_with_;  // of each first byte, and the end
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BPE_ADDED_TOKENS_H_
