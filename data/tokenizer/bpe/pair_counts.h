// SPDX-License-Identifier: Apache-2.0

// PairCounts: the pairs of adjacent tokens in many pieces, each piece with the number of times that
// it occurs, and the merging of the most frequent pair.
//
//   PairCounts pairs;
//   pairs.AddPiece({104, 101}, /*count=*/12);
//   while (const auto best = pairs.TakeMostFrequent()) pairs.Merge(*best, next_id++);
#ifndef APOGEE_DATA_TOKENIZER_BPE_PAIR_COUNTS_H_
#define APOGEE_DATA_TOKENIZER_BPE_PAIR_COUNTS_H_

#include <cstdint>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

namespace apogee::data {

class PairCounts {
 public:
  struct Pair {
    int32_t left, right;
    int64_t count;
  };

  void AddPiece(std::vector<int32_t> tokens, int64_t count);
  // The pair with the highest count, of equal ones that with the smallest ids. It is not given
  // again unless more of it come up. Empty if there is none.
  std::optional<Pair> TakeMostFrequent();
  // Makes `token` of each such pair, from left to right in each piece.
  void Merge(const Pair& pair, int32_t token);

 private:
  struct Piece {
    std::vector<int32_t> tokens;
    int64_t count;
  };
  struct Entry {
    int64_t count = 0;
    std::vector<uint32_t> pieces;  // that have the pair, or had it
  };
  struct Queued {
    int64_t count;
    uint64_t key;
    // The top of the queue is the largest.
    bool operator<(const Queued& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  static uint64_t KeyOf(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  void Count(int32_t left, int32_t right, int64_t count, uint32_t piece);

  std::vector<Piece> pieces_;
  std::unordered_map<uint64_t, Entry> pairs_;
  std::priority_queue<Queued> queue_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BPE_PAIR_COUNTS_H_
