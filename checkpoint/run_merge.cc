// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/run_merge.h"

#include <algorithm>

namespace apogee::checkpoint {

void RunMerge::Add(std::span<const Run> runs) {
  int64_t local = 0;
  for (const Run& run : runs) {
    int64_t skipped = 0;  // segments that end at or before from_
    if (run.begin + run.length <= from_) {
      skipped = run.stride == 0
                    ? run.count
                    : std::min(run.count, (from_ - run.begin - run.length) / run.stride + 1);
    }
    if (skipped < run.count) {
      heap_.push_back({.piece = {run.begin + skipped * run.stride, run.length, num_lists_,
                                 local + skipped * run.length},
                       .stride = run.stride,
                       .left = run.count - skipped});
      std::ranges::push_heap(heap_, IsLater);
    }
    local += run.count * run.length;
  }
  ++num_lists_;
}

bool RunMerge::Next(RunPiece& piece) {
  if (heap_.empty()) return false;
  std::ranges::pop_heap(heap_, IsLater);
  Head& head = heap_.back();
  piece = head.piece;
  if (--head.left == 0) {
    heap_.pop_back();
    return true;
  }
  head.piece.begin += head.stride;
  head.piece.local += head.piece.length;
  std::ranges::push_heap(heap_, IsLater);
  return true;
}

}  // namespace apogee::checkpoint
