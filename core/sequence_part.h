// SPDX-License-Identifier: Apache-2.0

// SequencePart: which tokens of each sequence a rank holds, when ranks hold a part of each.
//
//   const SequencePart part{.rank = 1, .size = 4, .layout = SequenceLayout::kZigZag};
//   part.Whole(6);                     // 24 tokens, of which this rank has 6,
//   part.Runs(6);                      // {{3, 3}, {18, 3}}: 3, 4, 5, then 18, 19, 20
//
// Every rank of `size` holds as many tokens, in ascending order. The default is one rank, which
// holds all.
#ifndef APOGEE_CORE_SEQUENCE_PART_H_
#define APOGEE_CORE_SEQUENCE_PART_H_

#include <cstdint>
#include <vector>

namespace apogee {

enum class SequenceLayout {
  // Rank r has piece r of `size`.
  kContiguous,
  // Of 2 size pieces, rank r has pieces r and 2 size - 1 - r: under a causal mask each rank has as
  // much to do.
  kZigZag,
};

// Tokens [first, first + length) of the whole sequence.
struct TokenRun {
  int64_t first = 0;
  int64_t length = 0;
};

struct SequencePart {
  int rank = 0;
  int size = 1;
  SequenceLayout layout = SequenceLayout::kContiguous;

  bool is_whole() const { return size == 1; }
  // Runs per rank.
  int num_runs() const { return size > 1 && layout == SequenceLayout::kZigZag ? 2 : 1; }
  // What must divide the tokens of a sequence.
  int64_t divisor() const { return int64_t{size} * num_runs(); }
  // Tokens of the sequence of which this rank holds `tokens`.
  int64_t Whole(int64_t tokens) const { return tokens * size; }
  // What this rank holds, `tokens` in all.
  std::vector<TokenRun> Runs(int64_t tokens) const {
    if (num_runs() == 1) return {{rank * tokens, tokens}};
    const int64_t piece = tokens / 2;
    return {{rank * piece, piece}, {(2 * int64_t{size} - 1 - rank) * piece, piece}};
  }
};

}  // namespace apogee

#endif  // APOGEE_CORE_SEQUENCE_PART_H_
