// SPDX-License-Identifier: Apache-2.0

// Regions hold the elements of the blocks they were joined from, each once, and are few.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "apogee/optim/cuda/device/regions.h"

namespace apogee::optim::cuda {
namespace cuda_regions_test {

// Local position to row and column.
using Places = std::map<int64_t, std::pair<int64_t, int64_t>>;

Places PlacesOf(std::span<const RowBlock> blocks, int64_t stride) {
  Places places;
  for (const RowBlock& b : blocks) {
    for (int64_t i = 0; i < b.rows; ++i) {
      for (int64_t j = 0; j < b.cols; ++j) {
        places[b.local + i * stride + j] = {b.row + i, b.column + j};
      }
    }
  }
  return places;
}

Places PlacesOf(std::span<const Region> regions) {
  Places places;
  for (const Region& r : regions) {
    EXPECT_TRUE(r.copies == 1 || (r.row_step >= r.rows && r.column_step >= r.cols));
    for (int64_t c = 0; c < r.copies; ++c) {
      for (int64_t i = 0; i < r.rows; ++i) {
        for (int64_t j = 0; j < r.cols; ++j) {
          const int64_t local = r.local + c * r.local_step + i * r.stride + j;
          EXPECT_TRUE(
              places.insert({local, {r.row + c * r.row_step + i, r.column + c * r.column_step + j}})
                  .second)
              << "twice: " << local;
        }
      }
    }
  }
  return places;
}

void ExpectRegions(const Layout& layout, size_t count) {
  const std::vector<RowBlock> blocks = RowBlocks(layout);
  const int64_t stride = layout.matrix().cols;
  const std::vector<Region> regions = JoinBlocks(blocks, stride);
  EXPECT_EQ(regions.size(), count);
  EXPECT_EQ(PlacesOf(regions), PlacesOf(blocks, stride));
}

TEST(JoinBlocksTest, WholeParameters) {
  for (const Shape& shape :
       {Shape{33, 17}, Shape{1, 9}, Shape{9, 1}, Shape{5, 4100}, Shape{700, 300}, Shape{4, 6, 5},
        Shape{3, 2, 3, 3}, Shape{2, 3, 2500}, Shape{37}, Shape{5000}}) {
    ExpectRegions(Layout(shape), 1);
  }
}

TEST(JoinBlocksTest, PartsThatCutRows) {
  ExpectRegions(Layout({33, 17}, {.segments = {{20, 301}}}), 3);
  ExpectRegions(Layout({33, 17}, {.segments = {{34, 170}}}), 1);
  ExpectRegions(Layout({33, 17}, {.segments = {{20, 3}}}), 1);
  ExpectRegions(Layout({9, 5000}, {.segments = {{2300, 20000}}}), 3);
  // From the middle of one matrix to the middle of another.
  ExpectRegions(Layout({5, 6, 5}, {.segments = {{17, 100}}}), 5);
  ExpectRegions(Layout({33, 17}, {.segments = {}}), 0);
}

// As tensor parallelism cuts: some columns of every row, some rows of each of three sections.
TEST(JoinBlocksTest, PartsOfManySegments) {
  std::vector<Segment> columns, sections, batch;
  for (int64_t row = 0; row < 12; ++row) columns.push_back({row * 40 + 10, 20});
  ExpectRegions(Layout({12, 40}, {.segments = columns}), 1);
  for (int64_t section = 0; section < 3; ++section) sections.push_back({section * 400 + 80, 200});
  ExpectRegions(Layout({30, 40}, {.segments = sections}), 3);
  for (int64_t row = 0; row < 12; ++row) batch.push_back({row * 10 + 3, 4});
  ExpectRegions(Layout({3, 4, 10}, {.segments = batch}), 1);
}

}  // namespace cuda_regions_test
}  // namespace apogee::optim::cuda
