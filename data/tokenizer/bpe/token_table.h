// SPDX-License-Identifier: Apache-2.0

// TokenTable: the texts of tokens by their ids, and back.
//
//   TokenTable tokens(/*size=*/50257);
//   tokens.Set(262, " the");                // false if the id is taken
//   tokens.Index();
//   int32_t id = tokens.Find(" the");       // 262; kNone if there is none
//
// Ids may have holes; a hole has the empty text. One block of memory holds all texts.
#ifndef APOGEE_DATA_TOKENIZER_BPE_TOKEN_TABLE_H_
#define APOGEE_DATA_TOKENIZER_BPE_TOKEN_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace apogee::data {

class TokenTable {
 public:
  static constexpr int32_t kNone = -1;

  // Ids are less than `size`; the texts have at most 4 GiB together.
  explicit TokenTable(size_t size = 0) : places_(size) {}

  // False if another token has the id. Texts are not empty. Find knows only `findable` ones.
  bool Set(int32_t id, std::string_view text, bool findable = true);
  // To be called after the last Set: makes Find possible. Returns a findable token whose text
  // another one has, too, or kNone if there is none.
  int32_t Index();

  int32_t Find(std::string_view text) const;
  // Empty for a hole.
  std::string_view Text(int32_t id) const {
    const Place& place = places_[static_cast<size_t>(id)];
    return std::string_view(bytes_).substr(place.begin, place.size);
  }
  bool contains(int64_t id) const {
    return id >= 0 && id < size() && places_[static_cast<size_t>(id)].size > 0;
  }
  int64_t size() const { return static_cast<int64_t>(places_.size()); }

 private:
  struct Place {
    uint32_t begin = 0, size = 0;
    bool findable = false;
  };
  size_t SlotOf(std::string_view text) const;

  std::string bytes_;
  std::vector<Place> places_;
  std::vector<int32_t> slots_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BPE_TOKEN_TABLE_H_
