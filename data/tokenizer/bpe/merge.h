// SPDX-License-Identifier: Apache-2.0

// Byte-pair encoding of one piece: the adjacent pair with the lowest rank, of equal ones the first,
// becomes one token, again and again (Sennrich, Haddow and Birch, "Neural Machine Translation of
// Rare Words with Subword Units", ACL 2016).
//
//   MergeScratch scratch;                          // memory that calls use again
//   scratch.tokens = {'l', 'o', 'w'};
//   MergePairs(table, scratch);                    // scratch.tokens is what is left
//
// Short pieces are searched for the lowest rank each time. Long ones have a heap, so the time is
// n log n for n tokens, and the memory 32 bytes each.
#ifndef APOGEE_DATA_TOKENIZER_BPE_MERGE_H_
#define APOGEE_DATA_TOKENIZER_BPE_MERGE_H_

#include <cstdint>
#include <vector>

#include "apogee/data/tokenizer/bpe/merge_table.h"

namespace apogee::data {

struct MergeScratch {
  std::vector<int32_t> tokens;

  std::vector<MergeTable::Merge> merges;  // of each token with the next
  std::vector<uint32_t> previous, next;
  std::vector<uint64_t> heap;  // rank, position
};

void MergePairs(const MergeTable& table, MergeScratch& scratch);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BPE_MERGE_H_
