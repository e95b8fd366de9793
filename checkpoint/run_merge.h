// SPDX-License-Identifier: Apache-2.0

// RunMerge: iterates over the segments of several slices of a tensor in the order of the tensor's
// elements. It holds one position per run, however many segments the run stands for.
//
//   RunMerge merge;
//   for (const Slice& slice : tensor.slices) merge.Add(slice.runs);
//   for (RunPiece piece; merge.Next(piece);) ... piece.begin, piece.length, of slice piece.list ...
//
// Runs must be as ParseManifest accepts them: with positive lengths and counts, without overflow.
#ifndef APOGEE_CHECKPOINT_RUN_MERGE_H_
#define APOGEE_CHECKPOINT_RUN_MERGE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "apogee/checkpoint/format/manifest.h"

namespace apogee::checkpoint {

// Elements [begin, begin + length) of the tensor, which are elements [local, local + length) of the
// slice.
struct RunPiece {
  int64_t begin = 0;
  int64_t length = 0;
  size_t list = 0;  // number of the Add call
  int64_t local = 0;
};

class RunMerge {
 public:
  // Skips the segments that end at or before element `from`.
  explicit RunMerge(int64_t from = 0) : from_(from) {}
  void Add(std::span<const Run> runs);
  // Reserves room for `num_runs` runs in all; BytesFor says how many bytes that takes.
  void Reserve(size_t num_runs) { heap_.reserve(num_runs); }
  static constexpr size_t BytesFor(size_t num_runs) { return num_runs * sizeof(Head); }
  // The next segment by its begin; false after the last.
  bool Next(RunPiece& piece);

 private:
  // The next segment of a run, and the ones after it.
  struct Head {
    RunPiece piece;
    int64_t stride = 0;
    int64_t left = 0;  // segments left, including this one
  };
  static bool IsLater(const Head& a, const Head& b) { return a.piece.begin > b.piece.begin; }

  int64_t from_;
  size_t num_lists_ = 0;
  std::vector<Head> heap_;
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_RUN_MERGE_H_
