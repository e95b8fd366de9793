// SPDX-License-Identifier: Apache-2.0

// PieceCache: the tokens of short pieces that were encoded lately. A text repeats its words, so
// most pieces are found here. The size is fixed: a piece replaces the one in its place.
//
//   const PieceCache::Key key(piece.data(), piece.size(), readable_bytes);
//   PieceCache::Entry& entry = cache.At(key);
//   if (entry.key == key) Append(entry.ids, entry.count);
#ifndef APOGEE_DATA_TOKENIZER_BPE_PIECE_CACHE_H_
#define APOGEE_DATA_TOKENIZER_BPE_PIECE_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace apogee::data {

class PieceCache {
 public:
  static constexpr size_t kMaxBytes = 23;  // of a piece
  static constexpr size_t kMaxIds = 9;

  // The bytes of a piece, and their number in the last byte.
  struct Key {
    // 1 to kMaxBytes bytes. Up to `readable` bytes from `data` on may be read.
    Key(const char* data, size_t size, size_t readable) : words{} {
      if (readable >= sizeof(words)) {
        std::memcpy(words.data(), data, sizeof(words));
        for (size_t i = 0; i < words.size(); ++i) {
          const size_t begin = 8 * i;
          if (size <= begin) {
            words[i] = 0;
          } else if (size < begin + 8) {
            words[i] &= (uint64_t{1} << (8 * (size - begin))) - 1;
          }
        }
      } else {
        std::memcpy(words.data(), data, size);
      }
      words[2] |= static_cast<uint64_t>(size) << 56;
    }
    Key() : words{} {}
    bool operator==(const Key& other) const {  // faster than that of std::array
      return words[0] == other.words[0] && words[1] == other.words[1] && words[2] == other.words[2];
    }

    std::array<uint64_t, 3> words;
  };

  struct Entry {
    Key key;
    uint32_t count = 0;
    std::array<int32_t, kMaxIds> ids{};
  };

  PieceCache() : entries_(size_t{1} << kIndexBits) {}

  Entry& At(const Key& key) {
    constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u;
    uint64_t hash = key.words[0] * kFactor;
    hash = (hash ^ hash >> 32 ^ key.words[1]) * kFactor;
    hash = (hash ^ hash >> 32 ^ key.words[2]) * kFactor;
    return entries_[hash >> (64 - kIndexBits)];
  }

 private:
  static_assert(sizeof(Entry) == 64);    // a line of the processor's cache
  static constexpr int kIndexBits = 15;  // 2 MiB

  std::vector<Entry> entries_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BPE_PIECE_CACHE_H_
