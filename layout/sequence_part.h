// SPDX-License-Identifier: Apache-2.0

// SequencePart: the tokens of each sequence that this rank holds under sequence parallelism.
//
//   const SequencePart part{.rank = 1, .size = 4, .layout = SequenceLayout::kZigZag};
//   part.Whole(6);     // 24: tokens of a sequence of which this rank holds 6
//   part.Runs(6);      // {{3, 3}, {18, 3}}: this rank's tokens 3, 4, 5, then 18, 19, 20
//
// All `size` ranks hold equally many tokens, in ascending order. By default one rank holds all.
#ifndef APOGEE_LAYOUT_SEQUENCE_PART_H_
#define APOGEE_LAYOUT_SEQUENCE_PART_H_

#include <cstdint>
#include <vector>

namespace apogee {

enum class SequenceLayout {
  // The sequence is cut into `size` pieces; rank r has piece r.
  kContiguous,
  // The sequence is cut into 2 size pieces; rank r has pieces r and 2 size - 1 - r. Under a causal
  // mask, each rank then has equally much to compute.
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
  // Number of runs of consecutive tokens per rank.
  int num_runs() const { return size > 1 && layout == SequenceLayout::kZigZag ? 2 : 1; }
  // The length of a sequence must be a multiple of this.
  int64_t divisor() const { return int64_t{size} * num_runs(); }
  // Length of the sequence of which this rank holds `tokens`.
  int64_t Whole(int64_t tokens) const { return tokens * size; }
  // The runs of tokens that this rank holds, `tokens` in all.
  std::vector<TokenRun> Runs(int64_t tokens) const {
    if (num_runs() == 1) return {{rank * tokens, tokens}};
    const int64_t piece = tokens / 2;
    return {{rank * piece, piece}, {(2 * int64_t{size} - 1 - rank) * piece, piece}};
  }
};

}  // namespace apogee

#endif  // APOGEE_LAYOUT_SEQUENCE_PART_H_
