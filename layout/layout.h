// SPDX-License-Identifier: Apache-2.0

// Layout: how a rank's local tensor maps onto the logical tensor, that of the single-rank run.
//
//   Layout whole(Shape{128, 64});                                // this rank holds all of it
//   Layout shard(Shape{128, 64}, {.segments = {{0, 100}}});      // elements [0, 100), ends mid-row
//   shard.local_numel() == 100;   shard.matrix().rows == 128;
//
// The local tensor is the concatenation of its segments, followed by padding. A segment is a range
// of the row-major logical tensor and may start and end in the middle of a row. Padding belongs to
// no logical element, so loops stop at local_numel(). The code that makes a shard also makes its
// layout; nothing is inferred later.
#ifndef APOGEE_LAYOUT_LAYOUT_H_
#define APOGEE_LAYOUT_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "apogee/core/shape.h"

namespace apogee {

// Elements [begin, begin + length) of the flat logical tensor.
struct Segment {
  int64_t begin = 0;
  int64_t length = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

// A tensor of rank >= 2 seen as `batch` matrices; a vector or a scalar is one row.
struct MatrixView {
  int64_t batch = 1;
  int64_t rows = 1;
  int64_t cols = 1;
};

struct LayoutOptions {
  std::vector<Segment> segments;
  // How many ranks hold each element. A norm over ranks counts an element 1 / num_replicas times on
  // each of them.
  int num_replicas = 1;
  // On every rank, segments begin and end at multiples of this many elements or at the end.
  int64_t cut_multiple = 1;
};

class Layout {
 public:
  // The whole tensor of a scalar.
  Layout() : Layout(Shape{}) {}
  explicit Layout(const Shape& logical_shape);
  // Throws Error for segments that leave the logical tensor, overlap, or are not cut at
  // cut_multiple, and for num_replicas or cut_multiple < 1.
  Layout(const Shape& logical_shape, LayoutOptions options);

  const Shape& logical_shape() const { return logical_shape_; }
  std::span<const Segment> segments() const { return options_.segments; }
  int num_replicas() const { return options_.num_replicas; }
  int64_t cut_multiple() const { return options_.cut_multiple; }
  // Elements held locally, padding excluded.
  int64_t local_numel() const { return local_numel_; }
  // Whether the local tensor is the logical one, element for element.
  bool is_whole() const;
  // The logical tensor as matrices: row and column statistics refer to these.
  MatrixView matrix() const;
  // The layout of a shard of this part. `inner` is a layout of this layout's local tensor, padding
  // included; the result says which logical elements it holds, with this layout's replicas. Throws
  // Error if padding would come before elements.
  Layout Part(const Layout& inner) const;

 private:
  Shape logical_shape_;
  LayoutOptions options_;
  int64_t local_numel_ = 0;
};

// A segment, and the position in the local tensor at which it begins.
struct PlacedSegment {
  Segment segment;
  int64_t local_begin = 0;
};
// The non-empty segments, ordered by their begin.
std::vector<PlacedSegment> SortedSegments(const Layout& layout);

// Calls fn(from_begin, to_begin, count) for every run of logical elements that both layouts hold,
// with the run's positions in the two local tensors. Runs come in the order of the segments of
// `to`, and within each in logical order. For a and b segments it takes (a + b) log a steps, and
// one step per run.
template <typename Fn>
void ForEachCommonRun(const Layout& from, const Layout& to, const Fn& fn) {
  const std::vector<PlacedSegment> sources = SortedSegments(from);
  int64_t to_begin = 0;
  for (const Segment& target : to.segments()) {
    const int64_t target_end = target.begin + target.length;
    // The first source that ends after the target's begin: sources do not overlap, so ends ascend.
    auto source = std::upper_bound(sources.begin(), sources.end(), target.begin,
                                   [](int64_t at, const PlacedSegment& placed) {
                                     return at < placed.segment.begin + placed.segment.length;
                                   });
    for (; source != sources.end() && source->segment.begin < target_end; ++source) {
      const Segment& segment = source->segment;
      const int64_t begin = std::max(target.begin, segment.begin);
      const int64_t end = std::min(target_end, segment.begin + segment.length);
      if (begin < end) {
        fn(source->local_begin + begin - segment.begin, to_begin + begin - target.begin,
           end - begin);
      }
    }
    to_begin += target.length;
  }
}

// Calls fn(row, column, local_begin, count) for every piece of a logical row that is held locally:
//   row          in [0, batch * rows)
//   column       of the piece's first element
//   local_begin  its position in the local tensor
//   count        its length
// Row and column sums over any sharding are loops over these pieces.
template <typename Fn>
void ForEachRowPiece(const Layout& layout, const Fn& fn) {
  const int64_t cols = layout.matrix().cols;
  int64_t local = 0;
  for (const Segment& segment : layout.segments()) {
    int64_t position = segment.begin;
    const int64_t end = segment.begin + segment.length;
    while (position < end) {
      const int64_t row = position / cols;
      const int64_t next = row * cols + cols < end ? row * cols + cols : end;
      fn(row, position - row * cols, local, next - position);
      local += next - position;
      position = next;
    }
  }
}

}  // namespace apogee

#endif  // APOGEE_LAYOUT_LAYOUT_H_
