// SPDX-License-Identifier: Apache-2.0

// Operands that do not fit, and the cost of the gradients of slices.
#include <gmock/gmock.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee {
namespace shape_errors_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;

class ShapeErrorsTest : public ::testing::Test {
 protected:
  Tensor Random(const Shape& shape) { return RandomTensor(shape, "x", context_); }
  Tensor Ids(const std::vector<int64_t>& values, const Shape& shape) {
    return Tensor::FromVector(values, shape, context_);
  }
  ContextPtr context_ = TestContext({.num_threads = 2});
};

TEST_F(ShapeErrorsTest, Broadcast) {
  const Tensor a = Random({2, 3}), b = Random({4});
  for (const auto& fn : {autograd::Add, autograd::Mul, autograd::Maximum}) {
    EXPECT_THAT([&] { fn(a, b); },
                Says(AllOf(HasSubstr("[2, 3] and [4] do not broadcast"), HasSubstr("3 and 4"))));
  }
  EXPECT_THAT([&] { autograd::Add(a, a.To(DType::kF32)); },
              Says(AllOf(HasSubstr("add: operands need one dtype"), HasSubstr("f64 and f32"),
                         HasSubstr("autograd::Cast"))));
  EXPECT_THAT(
      [&] {
        autograd::Expand(a, {2, 4});
      },
      Says(HasSubstr("shape [2, 3] does not repeat to [2, 4]")));
  EXPECT_THAT(
      [&] {
        autograd::MatMul(Random({2, 3, 4}), Random({3, 4, 5}));
      },
      Says(HasSubstr("matmul: shapes [2] and [3] do not broadcast")));
}

TEST_F(ShapeErrorsTest, Dims) {
  const Tensor x = Random({2, 3});
  EXPECT_THAT([&] { autograd::Sum(x, {2}); },
              Says(HasSubstr("sum: dim 2 is outside shape [2, 3]")));
  EXPECT_THAT([&] { autograd::Mean(x, {0, -2}); }, Says(HasSubstr("mean: dim 0 is named twice")));
  EXPECT_THAT([&] { autograd::Max(x, {}); }, Says(HasSubstr("max: names no dim")));
  EXPECT_THAT([&] { autograd::Var(x, {0}, false, 2); },
              Says(HasSubstr("var: needs more than 2 elements, got 2")));
  EXPECT_THAT([&] { autograd::Max(Random({2, 0}), {1}); }, Says(HasSubstr("no elements")));
  EXPECT_THAT([&] { autograd::Permute(x, {0, 0}); }, Says(HasSubstr("dim 0 is named twice")));
  EXPECT_THAT([&] { autograd::Permute(x, {0}); }, Says(HasSubstr("1 dims for shape [2, 3]")));
  EXPECT_THAT([&] { autograd::Softmax(x, 2); }, Says(HasSubstr("dim 2 is outside shape")));
  EXPECT_THAT([&] { autograd::CumSum(x, -3); }, Says(HasSubstr("cum_sum: dim -3 is outside")));
}

TEST_F(ShapeErrorsTest, MasksAndLimits) {
  const Tensor x = Random({2, 3});
  EXPECT_THAT([&] { autograd::MaskedFill(x, x, 0); },
              Says(AllOf(HasSubstr("the mask must be u8"), HasSubstr("f64"))));
  const Tensor mask = Tensor::Zeros({4}, DType::kU8, context_);
  EXPECT_THAT([&] { autograd::MaskedFill(x, mask, 0); },
              Says(HasSubstr("[2, 3] and [4] do not broadcast")));
  EXPECT_THAT([&] { autograd::Clamp(x, 1, -1); }, Says(HasSubstr("needs low <= high")));
  EXPECT_THAT([&] { autograd::Clamp(x, NAN, 1); }, Says(HasSubstr("needs low <= high")));
  for (const double cap : {0.0, -1.0, double{NAN}, double{INFINITY}}) {
    EXPECT_THAT([&] { autograd::SoftCap(x, cap); }, Says(HasSubstr("must be above 0 and finite")));
  }
}

TEST_F(ShapeErrorsTest, Indices) {
  const Tensor x = Random({2, 3});
  EXPECT_THAT(
      [&] {
        autograd::Gather(x, 1, Ids({0, 1, 3, 0}, {2, 2}));
      },
      Says(HasSubstr("gather: index 3 at position 2 is outside [0, 3)")));
  EXPECT_THAT(
      [&] {
        autograd::Gather(x, 1, Ids({0, -1}, {2, 1}));
      },
      Says(HasSubstr("index -1 at position 1")));
  EXPECT_THAT(
      [&] {
        autograd::Gather(x, 0, Ids({0, 1}, {1, 2}));
      },
      Says(AllOf(HasSubstr("dim 1 of the index [1, 2] must be 3 or 1"))));
  EXPECT_THAT([&] { autograd::Gather(x, 0, Ids({0}, {1})); }, Says(HasSubstr("as many dims")));
  EXPECT_THAT([&] { autograd::Gather(x, 0, x); }, Says(HasSubstr("indices must be i64, got f64")));
  EXPECT_THAT(
      [&] {
        autograd::IndexSelect(x, 0, Ids({0, 1}, {2, 1}));
      },
      Says(HasSubstr("ids of one dim, got [2, 1]")));
  EXPECT_THAT(
      [&] {
        autograd::ScatterAdd(x, 0, Ids({0}, {1, 1}), Random({1, 4}));
      },
      Says(AllOf(HasSubstr("[1, 4]"), HasSubstr("[2, 3]"))));
}

TEST_F(ShapeErrorsTest, ConcatStackSplit) {
  const Tensor x = Random({2, 3}), y = Random({2, 4});
  const std::vector<Tensor> both{x, y};
  EXPECT_THAT([&] { autograd::Concat(both, 0); },
              Says(HasSubstr("[2, 3] and [2, 4] differ in more than dim 0")));
  EXPECT_THAT([&] { autograd::Stack(both, 0); }, Says(HasSubstr("[2, 3] and [2, 4] differ")));
  EXPECT_THAT([&] { autograd::Concat({}, 0); }, Says(HasSubstr("at least one tensor")));
  EXPECT_THAT([&] { autograd::Split(x, 2, 1); }, Says(HasSubstr("does not divide into 2")));
  EXPECT_THAT(
      [&] {
        autograd::Split(x, std::vector<int64_t>{1, 1}, 1);
      },
      Says(AllOf(HasSubstr("add up to 2"), HasSubstr("has 3"))));
}

TEST_F(ShapeErrorsTest, Equations) {
  const Tensor x = Random({2, 3}), y = Random({4, 5});
  const auto einsum = [](const std::string& equation, const std::vector<Tensor>& operands) {
    return [=] { autograd::Einsum(equation, operands); };
  };
  EXPECT_THAT(einsum("ij,jk->ik", {x, y}), Says(HasSubstr("'j' is 3 and, in operand 1, 4")));
  EXPECT_THAT(einsum("ij", {x}), Says(HasSubstr("no \"->\"")));
  EXPECT_THAT(einsum("ii->i", {x}), Says(HasSubstr("'i' twice in one operand")));
  EXPECT_THAT(einsum("ij->k", {x}), Says(HasSubstr("'k' of the result is in no operand")));
  EXPECT_THAT(einsum("ij,jk->ik", {x}), Says(HasSubstr("names 2 operands, got 1")));
  EXPECT_THAT(einsum("...j->j", {x}), Says(HasSubstr("'.' is not a letter")));
  EXPECT_THAT(einsum("ijk->i", {x}), Says(HasSubstr("operand 0 is [2, 3], not \"ijk\"")));
}

// The gradients of all slices are added into one tensor: a slice allocates none of x's size.
TEST_F(ShapeErrorsTest, SlicesShareOneGradient) {
  constexpr int64_t kSlices = 64, kRow = 32;
  for (const int dim : {0, 1}) {
    autograd::Parameter x("x", Random({kSlices, kSlices, kRow}));
    const Tensor value = autograd::Scale(x.value(), 2);
    std::vector<Tensor> sums;
    for (int64_t i = 0; i < kSlices; ++i) {
      sums.push_back(autograd::Sum(autograd::Slice(value, dim, i, 1), {2, dim}));
    }
    const Tensor loss = autograd::Sum(autograd::Concat(sums, 0));
    context_->ledger().ResetPeaks();
    const int64_t before = context_->ledger().num_allocations();
    autograd::Backward(loss);
    const int64_t allocations = context_->ledger().num_allocations() - before;
    // For each: a part of the concatenation's gradient, the gradient of the slice and, along dim 1,
    // the sum with what was there.
    EXPECT_LE(allocations, (dim == 0 ? 2 : 4) * kSlices + 16);
    EXPECT_EQ(x.grad().ToVector<double>(), std::vector<double>(kSlices * kSlices * kRow, 2.0));
  }
}

}  // namespace shape_errors_test
}  // namespace apogee
