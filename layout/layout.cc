// SPDX-License-Identifier: Apache-2.0

#include "apogee/layout/layout.h"

#include <algorithm>
#include <numeric>

#include "apogee/core/error.h"

namespace apogee {

Layout::Layout(const Shape& logical_shape)
    : Layout(logical_shape, {.segments = {{0, logical_shape.numel()}}}) {}

Layout::Layout(const Shape& logical_shape, LayoutOptions options)
    : logical_shape_(logical_shape), options_(std::move(options)) {
  APOGEE_CHECK(options_.num_replicas >= 1, "layout of ", logical_shape, ": num_replicas is ",
               options_.num_replicas, ", must be at least 1");
  const int64_t numel = logical_shape_.numel();
  const int64_t cut = options_.cut_multiple;
  APOGEE_CHECK(cut >= 1, "layout of ", logical_shape, ": cut_multiple is ", cut,
               ", must be at least 1");
  for (const Segment& s : options_.segments) {
    const int64_t s_end = s.begin + s.length;
    APOGEE_CHECK(s.length == 0 || (s.begin % cut == 0 && (s_end % cut == 0 || s_end == numel)),
                 "layout of ", logical_shape, ": segment [", s.begin, ", ", s_end,
                 ") is not cut at multiples of ", cut);
    APOGEE_CHECK(s.begin >= 0 && s.length >= 0 && s.begin <= numel - s.length, "layout of ",
                 logical_shape, ": segment [", s.begin, ", ", s.begin + s.length,
                 ") is not within the logical tensor of ", numel, " elements");
    local_numel_ += s.length;
  }
  std::vector<Segment> sorted = options_.segments;
  std::sort(sorted.begin(), sorted.end(),
            [](const Segment& a, const Segment& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    APOGEE_CHECK(sorted[i - 1].begin + sorted[i - 1].length <= sorted[i].begin, "layout of ",
                 logical_shape, ": segments overlap at element ", sorted[i].begin);
  }
}

bool Layout::is_whole() const {
  int64_t next = 0;
  for (const Segment& s : options_.segments) {
    if (s.begin != next) return false;
    next += s.length;
  }
  return next == logical_shape_.numel();
}

Layout Layout::Part(const Layout& inner) const {
  LayoutOptions part{.segments = {},
                     .num_replicas = options_.num_replicas,
                     .cut_multiple = is_whole() ? inner.cut_multiple()
                                                : std::gcd(cut_multiple(), inner.cut_multiple())};
  bool padded = false;
  for (const Segment& local : inner.segments()) {
    int64_t at = 0, found = 0;  // `at`: where the segment begins in the local tensor
    for (const Segment& s : options_.segments) {
      const int64_t from = std::max(at, local.begin);
      const int64_t to = std::min(at + s.length, local.begin + local.length);
      if (from < to) {
        part.segments.push_back({s.begin + from - at, to - from});
        found += to - from;
      }
      at += s.length;
    }
    APOGEE_CHECK(!padded || found == 0, "layout of ", logical_shape_,
                 ": the part would have padding before its elements");
    padded = padded || found < local.length;
  }
  return Layout(logical_shape_, std::move(part));
}

std::vector<PlacedSegment> SortedSegments(const Layout& layout) {
  std::vector<PlacedSegment> sorted;
  sorted.reserve(layout.segments().size());
  int64_t local = 0;
  for (const Segment& segment : layout.segments()) {
    if (segment.length > 0) sorted.push_back({segment, local});
    local += segment.length;
  }
  std::sort(sorted.begin(), sorted.end(), [](const PlacedSegment& a, const PlacedSegment& b) {
    return a.segment.begin < b.segment.begin;
  });
  return sorted;
}

MatrixView Layout::matrix() const {
  const int rank = logical_shape_.rank();
  if (rank == 0) return {};
  if (rank == 1) return {.cols = logical_shape_[0]};
  MatrixView view{.batch = 1, .rows = logical_shape_[-2], .cols = logical_shape_[-1]};
  for (int dim = 0; dim + 2 < rank; ++dim) view.batch *= logical_shape_[dim];
  return view;
}

}  // namespace apogee
