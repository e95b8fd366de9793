#include "apogee/comm/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "apogee/core/error.h"

namespace apogee::comm {
namespace {

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
              testing::ElementsAre(Piece{0, 0, 0, 4}, Piece{1, 0, 4, 4}, Piece{2, 0, 8, 4}));
  EXPECT_TRUE(Layout(Shape{}).is_whole());
  EXPECT_EQ(PiecesOf(Layout(Shape{})).size(), 1u);
  EXPECT_TRUE(PiecesOf(Layout(Shape{0, 3})).empty());
}

TEST(LayoutTest, SegmentsMayCutRows) {
  const Layout layout(Shape{3, 4}, {.segments = {{2, 5}, {9, 1}}});
  EXPECT_FALSE(layout.is_whole());
  EXPECT_EQ(layout.local_numel(), 6);
  EXPECT_THAT(PiecesOf(layout),
              testing::ElementsAre(Piece{0, 2, 0, 2}, Piece{1, 0, 2, 3}, Piece{2, 1, 5, 1}));
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

}  // namespace
}  // namespace apogee::comm
