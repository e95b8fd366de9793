// SPDX-License-Identifier: Apache-2.0

#include "apogee/layout/layout.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <tuple>
#include <vector>

#include "apogee/core/error.h"

namespace apogee {
namespace layout_test {

using Piece = std::tuple<int64_t, int64_t, int64_t, int64_t>;

std::vector<Piece> PiecesOf(const Layout& layout) {
  std::vector<Piece> pieces;
  ForEachRowPiece(layout, [&](int64_t row, int64_t column, int64_t begin, int64_t count) {
    pieces.emplace_back(row, column, begin, count);
  });
  return pieces;
}

TEST(LayoutTest, Whole) {
  const Layout layout(Shape{3, 4});
  EXPECT_TRUE(layout.is_whole());
  EXPECT_EQ(layout.local_numel(), 12);
  EXPECT_EQ(layout.num_replicas(), 1);
  EXPECT_THAT(PiecesOf(layout),
              ::testing::ElementsAre(Piece{0, 0, 0, 4}, Piece{1, 0, 4, 4}, Piece{2, 0, 8, 4}));
  EXPECT_TRUE(Layout(Shape{}).is_whole());
  EXPECT_EQ(PiecesOf(Layout(Shape{})).size(), 1u);
  EXPECT_TRUE(PiecesOf(Layout(Shape{0, 3})).empty());
}

TEST(LayoutTest, SegmentsMayCutRows) {
  const Layout layout(Shape{3, 4}, {.segments = {{2, 5}, {9, 1}}});
  EXPECT_FALSE(layout.is_whole());
  EXPECT_EQ(layout.local_numel(), 6);
  EXPECT_THAT(PiecesOf(layout),
              ::testing::ElementsAre(Piece{0, 2, 0, 2}, Piece{1, 0, 2, 3}, Piece{2, 1, 5, 1}));
}

TEST(LayoutTest, MatrixView) {
  const auto expect = [](const Shape& shape, int64_t batch, int64_t rows, int64_t cols) {
    const MatrixView m = Layout(shape).matrix();
    EXPECT_EQ(std::tuple(m.batch, m.rows, m.cols), std::tuple(batch, rows, cols)) << shape;
  };
  expect({}, 1, 1, 1);
  expect({7}, 1, 1, 7);
  expect({3, 4}, 1, 3, 4);
  expect({2, 5, 3, 4}, 10, 3, 4);
}

TEST(LayoutTest, RefusesImpossibleSegments) {
  EXPECT_THROW(Layout(Shape{3, 4}, {.segments = {{8, 5}}}), Error);
  EXPECT_THROW(Layout(Shape{3, 4}, {.segments = {{-1, 2}}}), Error);
  EXPECT_THROW(Layout(Shape{3, 4}, {.segments = {{0, 5}, {4, 2}}}), Error);
  EXPECT_THROW(Layout(Shape{3, 4}, {.segments = {{0, 5}}, .num_replicas = 0}), Error);
}

// Every element, by its place in a numbered logical tensor.
TEST(LayoutTest, APartOfAPartHoldsTheSameElements) {
  // The second and fourth quarter of each row of [3, 8], then two elements of padding.
  const Layout outer(Shape{3, 8}, {.segments = {{2, 2}, {6, 2}, {10, 2}, {14, 2}, {18, 2}, {22, 2}},
                                   .num_replicas = 2,
                                   .cut_multiple = 2});
  const auto part = [&](int64_t begin, int64_t length) {
    return outer.Part(Layout(Shape{14}, {.segments = {{begin, length}}}));
  };
  const Layout middle = part(3, 6);
  EXPECT_THAT(middle.segments(), ::testing::ElementsAre(Segment{7, 1}, Segment{10, 2},
                                                        Segment{14, 2}, Segment{18, 1}));
  EXPECT_EQ(middle.num_replicas(), 2);
  EXPECT_EQ(middle.cut_multiple(), 1);
  EXPECT_EQ(middle.logical_shape(), Shape({3, 8}));
  EXPECT_THAT(part(11, 3).segments(), ::testing::ElementsAre(Segment{23, 1}));  // then padding
  EXPECT_EQ(part(12, 2).local_numel(), 0);
  EXPECT_EQ(part(5, 0).local_numel(), 0);
  // Even cuts of even runs stay even.
  const Layout even = outer.Part(Layout(Shape{14}, {.segments = {{4, 6}}, .cut_multiple = 6 / 3}));
  EXPECT_EQ(even.cut_multiple(), 2);
  EXPECT_THROW(outer.Part(Layout(Shape{14}, {.segments = {{11, 3}, {0, 2}}})), Error);
}

TEST(LayoutTest, CommonRunsCoverWhatBothHold) {
  const Shape shape{5, 7};
  const Layout from(shape, {.segments = {{20, 9}, {0, 6}, {8, 10}}});
  const Layout to(shape, {.segments = {{3, 8}, {15, 7}, {30, 5}}});
  const auto numbers = [](const Layout& layout) {
    std::vector<int64_t> places;
    for (const Segment& s : layout.segments()) {
      for (int64_t i = 0; i < s.length; ++i) places.push_back(s.begin + i);
    }
    return places;
  };
  const std::vector<int64_t> source = numbers(from), target = numbers(to);
  std::vector<int64_t> got(target.size(), -1);
  ForEachCommonRun(from, to, [&](int64_t from_begin, int64_t to_begin, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      got[static_cast<size_t>(to_begin + i)] = source[static_cast<size_t>(from_begin + i)];
    }
  });
  for (size_t i = 0; i < got.size(); ++i) {
    const bool both = std::ranges::find(source, target[i]) != source.end();
    EXPECT_EQ(got[i], both ? target[i] : -1) << i;
  }
}

// Segments of up to `longest` elements in random order; some elements are left out.
Layout RandomLayout(int64_t numel, int64_t longest, std::mt19937_64& random) {
  const auto below = [&random](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
  };
  std::vector<Segment> segments;
  for (int64_t at = 0; at < numel;) {
    const int64_t length = std::min(1 + below(longest), numel - at);
    if (below(4) != 0) segments.push_back({at, length});
    at += length;
  }
  std::ranges::shuffle(segments, random);
  return Layout(Shape{numel}, {.segments = segments});
}

using Triple = std::tuple<int64_t, int64_t, int64_t>;

std::vector<Triple> CommonRuns(const Layout& from, const Layout& to) {
  std::vector<Triple> runs;
  ForEachCommonRun(from, to, [&](int64_t from_begin, int64_t to_begin, int64_t count) {
    runs.emplace_back(from_begin, to_begin, count);
  });
  return runs;
}

TEST(LayoutTest, CommonRunsAreThoseOfEveryPair) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const Layout from = RandomLayout(60, 1 + round % 9, random);
    const Layout to = RandomLayout(60, 1 + round % 7, random);
    std::vector<Triple> want;
    int64_t to_begin = 0;
    for (const Segment& t : to.segments()) {
      int64_t from_begin = 0;
      for (const Segment& f : from.segments()) {
        const int64_t begin = std::max(t.begin, f.begin);
        const int64_t end = std::min(t.begin + t.length, f.begin + f.length);
        if (begin < end) {
          want.emplace_back(from_begin + begin - f.begin, to_begin + begin - t.begin, end - begin);
        }
        from_begin += f.length;
      }
      to_begin += t.length;
    }
    std::vector<Triple> got = CommonRuns(from, to);
    std::ranges::sort(got);
    std::ranges::sort(want);
    ASSERT_EQ(got, want) << round;
  }
}

// Pair by pair this would be 10^10 steps: minutes.
TEST(LayoutTest, ManySegmentsHaveTheirCommonRunsSoon) {
  constexpr int64_t kSegments = 100'000;
  std::vector<Segment> even, odd;
  for (int64_t i = 0; i < kSegments; ++i) {
    even.push_back({4 * i, 3});
    odd.push_back({4 * (kSegments - 1 - i) + 2, 2});
  }
  const Shape shape{4 * kSegments};
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Triple> runs =
      CommonRuns(Layout(shape, {.segments = even}), Layout(shape, {.segments = odd}));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  ASSERT_EQ(runs.size(), static_cast<size_t>(kSegments));
  EXPECT_EQ(runs.front(), Triple(3 * (kSegments - 1) + 2, 0, 1));
  EXPECT_EQ(runs.back(), Triple(2, 2 * (kSegments - 1), 1));
}

}  // namespace layout_test
}  // namespace apogee
