// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/bpe/pair_counts.h"

namespace apogee::data {

// Counts that only fall are corrected when their entry of the queue comes up.
void PairCounts::Count(int32_t left, int32_t right, int64_t count, uint32_t piece) {
  const uint64_t key = KeyOf(left, right);
  Entry& entry = pairs_[key];
  entry.count += count;
  if (count <= 0) return;
  if (entry.pieces.empty() || entry.pieces.back() != piece) entry.pieces.push_back(piece);
  queue_.push({entry.count, key});
}

void PairCounts::AddPiece(std::vector<int32_t> tokens, int64_t count) {
  const auto piece = static_cast<uint32_t>(pieces_.size());
  for (size_t i = 0; i + 1 < tokens.size(); ++i) Count(tokens[i], tokens[i + 1], count, piece);
  pieces_.push_back({std::move(tokens), count});
}

std::optional<PairCounts::Pair> PairCounts::TakeMostFrequent() {
  while (!queue_.empty()) {
    const Queued top = queue_.top();
    queue_.pop();
    const Entry& entry = pairs_[top.key];
    if (entry.count <= 0) continue;
    if (entry.count < top.count) {
      queue_.push({entry.count, top.key});
    } else if (entry.count == top.count) {
      return Pair{static_cast<int32_t>(top.key >> 32), static_cast<int32_t>(top.key), top.count};
    }
  }
  return std::nullopt;
}

void PairCounts::Merge(const Pair& pair, int32_t token) {
  // Counting may move the entry.
  const std::vector<uint32_t> where = std::move(pairs_[KeyOf(pair.left, pair.right)].pieces);
  pairs_[KeyOf(pair.left, pair.right)] = Entry();
  for (const uint32_t number : where) {
    Piece& piece = pieces_[number];
    std::vector<int32_t>& tokens = piece.tokens;
    size_t kept = 0;
    bool after_merge = false;  // the token before was merged in this call
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool merges =
          i + 1 < tokens.size() && tokens[i] == pair.left && tokens[i + 1] == pair.right;
      if (!merges) {
        if (after_merge) {
          Count(pair.right, tokens[i], -piece.count, number);
          Count(token, tokens[i], piece.count, number);
        }
        tokens[kept++] = tokens[i];
        after_merge = false;
        continue;
      }
      if (kept > 0) {
        Count(after_merge ? pair.right : tokens[kept - 1], pair.left, -piece.count, number);
        Count(tokens[kept - 1], token, piece.count, number);
      }
      tokens[kept++] = token;
      after_merge = true;
      ++i;
    }
    tokens.resize(kept);
  }
  // What was merged is gone; a piece in which the pair overlapped itself may have counted below 0.
  pairs_[KeyOf(pair.left, pair.right)].count = 0;
}

}  // namespace apogee::data
