// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/bpe/merge.h"

#include <algorithm>
#include <functional>

namespace apogee::data {
namespace {

// Below it the search is faster than the heap.
constexpr size_t kSearchedTokens = 48;

void MergeBySearch(const MergeTable& table, MergeScratch& scratch) {
  std::vector<int32_t>& tokens = scratch.tokens;
  std::vector<MergeTable::Merge>& merges = scratch.merges;
  size_t count = tokens.size();
  merges.resize(count);
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = table.Find(tokens[i], tokens[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == MergeTable::kNone) break;
    tokens[best] = merges[best].token;
    --count;
    for (size_t i = best + 1; i < count; ++i) tokens[i] = tokens[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) merges[i] = merges[i + 1];
    if (best + 1 < count) merges[best] = table.Find(tokens[best], tokens[best + 1]);
    if (best > 0) merges[best - 1] = table.Find(tokens[best - 1], tokens[best]);
  }
  tokens.resize(count);
}

// Entries of the heap are not removed when their pair changes. One is valid if its rank is still
// that of the pair at its position.
void MergeByHeap(const MergeTable& table, MergeScratch& scratch) {
  constexpr int32_t kGone = -2;
  std::vector<int32_t>& tokens = scratch.tokens;
  const auto count = static_cast<uint32_t>(tokens.size());
  scratch.merges.resize(count);
  scratch.previous.resize(count);
  scratch.next.resize(count);
  scratch.heap.clear();
  const auto look_up = [&](uint32_t at) {
    MergeTable::Merge merge;
    const uint32_t next = scratch.next[at];
    if (next < count) merge = table.Find(tokens[at], tokens[next]);
    scratch.merges[at] = merge;
    if (merge.rank != MergeTable::kNone) {
      scratch.heap.push_back(static_cast<uint64_t>(merge.rank) << 32 | at);
      return true;
    }
    return false;
  };
  for (uint32_t i = 0; i < count; ++i) {
    scratch.previous[i] = i - 1;
    scratch.next[i] = i + 1;
  }
  for (uint32_t i = 0; i < count; ++i) look_up(i);
  std::make_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
  const auto look_up_again = [&](uint32_t at) {
    if (look_up(at)) std::push_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
  };
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
    const uint64_t entry = scratch.heap.back();
    scratch.heap.pop_back();
    const auto at = static_cast<uint32_t>(entry);
    if (tokens[at] == kGone || scratch.merges[at].rank != entry >> 32) continue;
    const uint32_t right = scratch.next[at];
    tokens[at] = scratch.merges[at].token;
    tokens[right] = kGone;
    scratch.next[at] = scratch.next[right];
    if (scratch.next[at] < count) scratch.previous[scratch.next[at]] = at;
    look_up_again(at);
    if (scratch.previous[at] < count) look_up_again(scratch.previous[at]);
  }
  std::erase(tokens, kGone);
}

}  // namespace

void MergePairs(const MergeTable& table, MergeScratch& scratch) {
  if (scratch.tokens.size() < kSearchedTokens) {
    MergeBySearch(table, scratch);
  } else {
    MergeByHeap(table, scratch);
  }
}

}  // namespace apogee::data
