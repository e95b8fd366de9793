// SPDX-License-Identifier: Apache-2.0

// Products of groups of rows, against a product per group.
#include "apogee/autograd/functions/grouped.h"

#include <gmock/gmock.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee {
namespace grouped_test {

using autograd::Parameter;
using autograd::ParameterPtr;
using testing::ExpectGradients;
using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;

class GroupedTest : public ::testing::Test {
 protected:
  std::vector<ParameterPtr> Weights(int64_t count, int64_t out, int64_t in, DType dtype) {
    std::vector<ParameterPtr> weights;
    for (int64_t i = 0; i < count; ++i) {
      const std::string name = std::to_string(i);
      weights.push_back(
          std::make_shared<Parameter>(name, RandomTensor({out, in}, name, context_, 1, dtype)));
    }
    return weights;
  }
  Tensor Ids(const std::vector<int64_t>& ids) {
    return Tensor::FromVector(ids, {static_cast<int64_t>(ids.size())}, context_);
  }
  static std::vector<Tensor> ValuesOf(const std::vector<ParameterPtr>& parameters) {
    std::vector<Tensor> values;
    for (const auto& parameter : parameters) values.push_back(parameter->value());
    return values;
  }

  const ContextPtr context_ = TestContext();
};

TEST_F(GroupedTest, EachGroupIsALinearLayer) {
  const std::vector<int64_t> counts = {3, 0, 1, 5};
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    const auto weights = Weights(4, 6, 5, dtype), alone = Weights(4, 6, 5, dtype);
    const auto x = std::make_shared<Parameter>("x", RandomTensor({9, 5}, "x", context_, 1, dtype));
    const auto same = std::make_shared<Parameter>("x", x->data().Clone());
    const Tensor y = autograd::GroupedLinear(x->value(), counts, ValuesOf(weights));
    std::vector<Tensor> parts;
    int64_t begin = 0;
    for (size_t g = 0; g < 4; begin += counts[g++]) {
      if (counts[g] == 0) continue;
      parts.push_back(autograd::Linear(autograd::Slice(same->value(), 0, begin, counts[g]),
                                       alone[g]->value(), {}));
    }
    const Tensor want = autograd::Concat(parts, 0);
    EXPECT_EQ(y.Detach().ToVector<double>(), want.Detach().ToVector<double>());
    const Tensor factor = RandomTensor({9, 6}, "factor", context_, 1, dtype);
    autograd::Backward(autograd::Sum(autograd::Mul(y, factor)));
    autograd::Backward(autograd::Sum(autograd::Mul(want, factor)));
    EXPECT_EQ(x->grad().ToVector<double>(), same->grad().ToVector<double>());
    for (size_t g = 0; g < 4; ++g) {
      ASSERT_EQ(weights[g]->has_grad(), counts[g] > 0) << g;
      if (counts[g] == 0) continue;
      EXPECT_EQ(weights[g]->grad().ToVector<double>(), alone[g]->grad().ToVector<double>());
    }
  }
}

// A rank to which no rows came.
TEST_F(GroupedTest, NoRowsAtAll) {
  const auto weights = Weights(2, 3, 4, DType::kF32);
  const auto x = std::make_shared<Parameter>("x", Tensor::Empty({0, 4}, DType::kF32, context_));
  const Tensor y = autograd::GroupedLinear(x->value(), {0, 0}, ValuesOf(weights));
  EXPECT_EQ(y.shape(), Shape({0, 3}));
  const Tensor sums =
      autograd::WeightedSum(y, Tensor::Empty({0}, DType::kF32, context_), Ids({}), 2);
  EXPECT_EQ(sums.Detach().ToVector<double>(), std::vector<double>(6, 0));
  autograd::Backward(autograd::Sum(sums));
  EXPECT_FALSE(weights[0]->has_grad());
}

TEST_F(GroupedTest, WeightGradientsCanWait) {
  const auto weights = Weights(2, 3, 4, DType::kF64);
  const auto x = std::make_shared<Parameter>("x", RandomTensor({5, 4}, "x", context_));
  const auto loss = [&] {
    return autograd::Sum(
        autograd::Square(autograd::GroupedLinear(x->value(), {2, 3}, ValuesOf(weights))));
  };
  autograd::Backward(loss());
  const std::vector<double> want = weights[1]->grad().ToVector<double>();
  weights[1]->zero_grad();
  autograd::DeferredWeightGrads deferred;
  autograd::Backward(loss(), {.deferred = &deferred});
  EXPECT_FALSE(weights[1]->has_grad());
  deferred.Run();
  EXPECT_EQ(weights[1]->grad().ToVector<double>(), want);
}

TEST_F(GroupedTest, Gradients) {
  ExpectGradients({RandomTensor({4, 3}, "x", context_), RandomTensor({2, 3}, "a", context_),
                   RandomTensor({2, 3}, "b", context_)},
                  [](const std::vector<Tensor>& in) {
                    return autograd::GroupedLinear(in[0], {1, 3}, {in[1], in[2]});
                  });
  ExpectGradients({RandomTensor({3, 4}, "x", context_)}, [&](const std::vector<Tensor>& in) {
    return autograd::TakeRows(in[0], Ids({2, 0, 2, 2}));
  });
  ExpectGradients({RandomTensor({5, 3}, "rows", context_), RandomTensor({5}, "weight", context_)},
                  [&](const std::vector<Tensor>& in) {
                    return autograd::WeightedSum(in[0], in[1], Ids({3, 0, 3, 1, 0}), 4);
                  });
}

TEST_F(GroupedTest, WeightedSumOfRows) {
  const Tensor rows = Tensor::FromVector<double>({1, 2, 3, 4, 5, 6}, {3, 2}, context_);
  const Tensor weight = Tensor::FromVector<double>({10, 100, 1000}, {3}, context_);
  EXPECT_EQ(autograd::WeightedSum(rows, weight, Ids({2, 0, 2}), 3).ToVector<double>(),
            (std::vector<double>{300, 400, 0, 0, 5010, 6020}));
}

// Gradients of rows that meet in x are added in f32 and rounded once.
TEST_F(GroupedTest, GradientsOfRowsRoundOnce) {
  const auto x = std::make_shared<Parameter>("x", Tensor::Zeros({1, 1}, DType::kBF16, context_));
  x->set_grad_dtype(DType::kF32);
  const Tensor rows = autograd::TakeRows(x->value(), Ids({0, 0, 0}));
  const Tensor factors = Tensor::FromVector<double>({256, 1, 1}, {3, 1}, context_, DType::kBF16);
  autograd::Backward(autograd::Sum(autograd::Mul(rows, factors)));
  EXPECT_EQ(x->grad().Item(), 258);
}

TEST_F(GroupedTest, Misuse) {
  const auto weights = Weights(2, 3, 4, DType::kF32);
  const Tensor x = Tensor::Zeros({5, 4}, DType::kF32, context_);
  const auto call = [&](const Tensor& in, const std::vector<int64_t>& counts) {
    return [&weights, in, counts] { autograd::GroupedLinear(in, counts, ValuesOf(weights)); };
  };
  EXPECT_THAT(call(x, {5}), Says(HasSubstr("1 counts and 2 weights")));
  EXPECT_THAT(call(x, {2, 2}), Says(HasSubstr("the counts add up to 4, but x [5, 4] has 5 rows")));
  EXPECT_THAT(call(x, {6, -1}), Says(HasSubstr("counts[1] is -1")));
  EXPECT_THAT(call(x.To(DType::kF64), {2, 3}), Says(HasSubstr("weights[0] must be f64")));
  EXPECT_THAT(call(Tensor::Zeros({5, 3}, DType::kF32, context_), {2, 3}),
              Says(HasSubstr("weights[0] must be f32 [3, 3]")));
  EXPECT_THAT([&] { autograd::WeightedSum(x, Tensor::Zeros({4}, DType::kF32, context_), {}, 1); },
              Says(HasSubstr("needs rows [R, d] and weight [R] of one dtype")));
}

}  // namespace grouped_test
}  // namespace apogee
