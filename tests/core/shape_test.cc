// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/shape.h"

#include <vector>

#include "apogee/core/error.h"
#include "gtest/gtest.h"

namespace apogee {
namespace shape_test {

TEST(Shape, SizesAndIndices) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.numel(), 30);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[-1], 5);
  EXPECT_EQ(shape.Normalize(-3), 0);
  EXPECT_EQ(shape.ToString(), "[2, 3, 5]");
  EXPECT_EQ(shape.RowMajorStrides(), (std::array<int64_t, 6>{15, 5, 1, 0, 0, 0}));
}

TEST(Shape, ScalarAndEmpty) {
  EXPECT_EQ(Shape().numel(), 1);
  EXPECT_EQ(Shape().ToString(), "[]");
  EXPECT_EQ((Shape{3, 0}.numel()), 0);
  EXPECT_NE(Shape(), Shape{1});
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
}

TEST(Shape, SetChangesEquality) {
  Shape shape{2, 3};
  shape.Set(-1, 4);
  EXPECT_EQ(shape, (Shape{2, 4}));
}

TEST(Shape, Errors) {
  EXPECT_THROW((Shape{2, -1}), Error);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_NO_THROW((Shape{1, 1, 1, 1, 1, 1}));
  const Shape shape{2, 3};
  EXPECT_THROW(shape[2], Error);
  EXPECT_THROW(shape[-3], Error);
  EXPECT_THROW(Shape()[0], Error);
  try {
    shape.Normalize(2);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "dim 2 is outside shape [2, 3]");
  }
}

}  // namespace shape_test
}  // namespace apogee
