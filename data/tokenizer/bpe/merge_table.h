// SPDX-License-Identifier: Apache-2.0

// MergeTable: pairs of tokens -> the rank of their merge and the token that they become. A flat
// hash table, as a look-up per pair is most of the work of BPE.
//
//   MergeTable table(merges.size());
//   table.Insert(left, right, {rank, token});              // false if the pair is there already
//   const MergeTable::Merge merge = table.Find(left, right);      // rank kNone if there is none
#ifndef APOGEE_DATA_TOKENIZER_BPE_MERGE_TABLE_H_
#define APOGEE_DATA_TOKENIZER_BPE_MERGE_TABLE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace apogee::data {

class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Merge {
    uint32_t rank = kNone;  // lower ranks merge first
    int32_t token = -1;
  };

  explicit MergeTable(size_t size = 0)
      : shift_(64 - static_cast<int>(std::bit_width(2 * size + 1))),
        slots_(size_t{1} << (64 - shift_)) {}

  // Tokens are not negative. At most `size` pairs fit.
  bool Insert(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = KeyOf(left, right);
    size_t at = PlaceOf(key);
    for (; slots_[at].merge.rank != kNone; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].key == key) return false;
    }
    slots_[at] = {key, merge};
    return true;
  }

  Merge Find(int32_t left, int32_t right) const {
    const uint64_t key = KeyOf(left, right);
    for (size_t at = PlaceOf(key);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].key == key || slots_[at].merge.rank == kNone) return slots_[at].merge;
    }
  }

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    Merge merge;
  };

  static uint64_t KeyOf(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  // Multiplicative hashing; the constant is 2^64 divided by the golden ratio.
  size_t PlaceOf(uint64_t key) const {
    return static_cast<size_t>(((key ^ key >> 31) * 0x9E3779B97F4A7C15u) >> shift_);
  }

  int shift_;
  std::vector<Slot> slots_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BPE_MERGE_TABLE_H_
