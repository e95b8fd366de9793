// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/bpe/token_table.h"

#include <bit>
#include <functional>

namespace apogee::data {

bool TokenTable::Set(int32_t id, std::string_view text, bool findable) {
  Place& place = places_[static_cast<size_t>(id)];
  if (place.size > 0) return false;
  place = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(text.size()), findable};
  bytes_ += text;
  return true;
}

// The slot that has the text, or the free one where it belongs.
size_t TokenTable::SlotOf(std::string_view text) const {
  size_t at = std::hash<std::string_view>()(text) & (slots_.size() - 1);
  while (slots_[at] != kNone && Text(slots_[at]) != text) at = (at + 1) & (slots_.size() - 1);
  return at;
}

int32_t TokenTable::Index() {
  slots_.assign(std::bit_ceil(2 * places_.size() + 1), kNone);
  int32_t repeated = kNone;
  for (int32_t id = 0; id < static_cast<int32_t>(places_.size()); ++id) {
    if (!places_[static_cast<size_t>(id)].findable) continue;
    int32_t& slot = slots_[SlotOf(Text(id))];
    if (slot != kNone) {
      repeated = id;
    } else {
      slot = id;
    }
  }
  return repeated;
}

int32_t TokenTable::Find(std::string_view text) const {
  return slots_.empty() ? kNone : slots_[SlotOf(text)];
}

}  // namespace apogee::data
