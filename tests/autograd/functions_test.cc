// SPDX-License-Identifier: Apache-2.0

// Every differentiable function against finite differences in f64.
#include <gmock/gmock.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/attention.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee {
namespace functions_test {

using testing::ExpectGradients;
using testing::RandomTensor;
using testing::Says;
using Inputs = std::vector<Tensor>;
using ::testing::HasSubstr;

class FunctionsTest : public ::testing::Test {
 protected:
  Tensor Random(const Shape& shape, const std::string& name, double std = 1.0) {
    return RandomTensor(shape, name, context_, std);
  }
  ContextPtr context_ = TestContext({.num_threads = 2});
};

TEST_F(FunctionsTest, BinaryWithAndWithoutBroadcast) {
  const Tensor a = Random({3, 4, 5}, "a");
  std::vector<double> divisors = Random({4, 5}, "b", 0.2).ToVector<double>();
  for (double& x : divisors) x += 2;
  const Tensor away_from_zero = Tensor::FromVector<double>(divisors, {4, 5}, context_);
  for (const Tensor& b : {Random({3, 4, 5}, "b"), Random({5}, "b")}) {
    ExpectGradients({a, b}, [](const Inputs& in) { return autograd::Add(in[0], in[1]); });
    ExpectGradients({a, b}, [](const Inputs& in) { return autograd::Sub(in[0], in[1]); });
    ExpectGradients({a, b}, [](const Inputs& in) { return autograd::Mul(in[0], in[1]); });
  }
  ExpectGradients({a, away_from_zero},
                  [](const Inputs& in) { return autograd::Div(in[0], in[1]); });
  EXPECT_THROW(autograd::Add(a, Random({4}, "c")), Error);
}

TEST_F(FunctionsTest, SameOperandTwice) {
  ExpectGradients({Random({7}, "x")}, [](const Inputs& in) { return autograd::Mul(in[0], in[0]); });
  ExpectGradients({Random({7}, "x")}, [](const Inputs& in) {
    return autograd::Add(in[0], autograd::Add(in[0], autograd::Scale(in[0], -3)));
  });
}

TEST_F(FunctionsTest, SumAndMean) {
  ExpectGradients({Random({3, 5}, "x")}, [](const Inputs& in) { return autograd::Sum(in[0]); });
  ExpectGradients({Random({3, 5}, "x")}, [](const Inputs& in) {
    return autograd::Scale(autograd::Mean(autograd::Mul(in[0], in[0])), 3);
  });
}

TEST_F(FunctionsTest, Activations) {
  for (Activation kind : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh,
                          Activation::kSilu, Activation::kTanh, Activation::kSigmoid}) {
    ExpectGradients({Random({33, 3}, "x")},
                    [kind](const Inputs& in) { return autograd::Activate(kind, in[0]); });
  }
  ExpectGradients({Random({5, 9}, "x")}, [](const Inputs& in) { return autograd::Softmax(in[0]); });
}

TEST_F(FunctionsTest, GatedUnits) {
  for (Activation kind :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    ExpectGradients({Random({5, 9}, "gate"), Random({5, 9}, "up")},
                    [kind](const Inputs& in) { return autograd::Gated(kind, in[0], in[1]); });
    // Halves of one tensor, in either order, and one of them with a tensor of its own.
    ExpectGradients({Random({2, 3, 10}, "x"), Random({2, 3, 5}, "y")}, [kind](const Inputs& in) {
      const std::vector<Tensor> halves = autograd::Split(in[0], 2, -1);
      return autograd::Add(autograd::Gated(kind, halves[1], halves[0]),
                           autograd::Gated(kind, halves[0], in[1]));
    });
    // Rows that no single stride describes.
    ExpectGradients({Random({4, 3, 2}, "x"), Random({2, 3, 4}, "y")}, [kind](const Inputs& in) {
      return autograd::Gated(kind, autograd::Transpose(in[0], 0, 2), in[1]);
    });
    ExpectGradients({Random({2, 4, 6}, "x")}, [kind](const Inputs& in) {
      const std::vector<Tensor> parts = autograd::Split(in[0], 2, 1);
      return autograd::Gated(kind, parts[0], parts[1]);
    });
  }
  EXPECT_THAT(
      [&] {
        autograd::Gated(Activation::kSilu, Random({5, 9}, "gate"), Random({5, 8}, "up"));
      },
      Says(HasSubstr("operands need one shape, got [5, 9] and [5, 8]")));
}

// A slice of the last dim is read where it is.
TEST_F(FunctionsTest, GatedHalvesAreNotCopied) {
  if (TestsRunOnCuda()) GTEST_SKIP() << "counts the memory of the host";
  const Tensor x = Random({64, 2 * 1000}, "x");
  const std::vector<Tensor> halves = autograd::Split(x, 2, -1);
  const Tensor apart =
      autograd::Gated(Activation::kSilu, halves[0].Contiguous(), halves[1].Contiguous());
  const int64_t before = context_->ledger().live_total_bytes();
  context_->ledger().ResetPeaks();
  const Tensor y = autograd::Gated(Activation::kSilu, halves[0], halves[1]);
  EXPECT_EQ(context_->ledger().peak_total_bytes(), before + y.bytes());
  EXPECT_EQ(y.ToVector<double>(), apart.ToVector<double>());
}

TEST_F(FunctionsTest, LinearBothLayoutsWithBiasAndActivation) {
  using autograd::WeightLayout;
  for (WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
    const Shape shape = layout == WeightLayout::kOutIn ? Shape{6, 5} : Shape{5, 6};
    for (bool gelu : {false, true}) {
      autograd::LinearOptions options{.layout = layout};
      if (gelu) options.activation = Activation::kGeluTanh;
      ExpectGradients(
          {Random({2, 3, 5}, "x"), Random(shape, "w"), Random({6}, "b")},
          [options](const Inputs& in) { return autograd::Linear(in[0], in[1], in[2], options); });
      ExpectGradients({Random({4, 5}, "x"), Random(shape, "w")}, [options](const Inputs& in) {
        return autograd::Linear(in[0], in[1], Tensor(), options);
      });
    }
  }
  EXPECT_THROW(autograd::Linear(Random({4, 5}, "x"), Random({6, 4}, "w"), Tensor()), Error);
}

TEST_F(FunctionsTest, MatMulAllTransposes) {
  for (bool at : {false, true}) {
    for (bool bt : {false, true}) {
      const Shape a = at ? Shape{4, 3} : Shape{3, 4};
      const Shape b = bt ? Shape{5, 4} : Shape{4, 5};
      ExpectGradients({Random(a, "a"), Random(b, "b")},
                      [=](const Inputs& in) { return autograd::MatMul(in[0], in[1], at, bt); });
      const Shape ab = at ? Shape{2, 4, 3} : Shape{2, 3, 4};
      const Shape bb = bt ? Shape{2, 5, 4} : Shape{2, 4, 5};
      ExpectGradients({Random(ab, "a"), Random(bb, "b")},
                      [=](const Inputs& in) { return autograd::MatMul(in[0], in[1], at, bt); });
    }
  }
  ExpectGradients({Random({2, 3, 4}, "a"), Random({4, 5}, "b")},
                  [](const Inputs& in) { return autograd::MatMul(in[0], in[1]); });
}

TEST_F(FunctionsTest, ViewsAndStridedOperands) {
  ExpectGradients({Random({2, 3, 4}, "x")}, [](const Inputs& in) {
    return autograd::Scale(autograd::View(in[0], {6, 4}), 2);
  });
  ExpectGradients({Random({3, 4}, "x"), Random({3, 5}, "b")}, [](const Inputs& in) {
    return autograd::MatMul(autograd::Transpose(in[0], 0, 1), in[1]);
  });
  ExpectGradients({Random({4, 3}, "x")}, [](const Inputs& in) {
    return autograd::Gelu(autograd::Contiguous(autograd::Transpose(in[0], 0, 1)));
  });
  ExpectGradients({Random({4, 6}, "x")}, [](const Inputs& in) {
    return autograd::Mul(autograd::Slice(in[0], 1, 1, 3), autograd::Slice(in[0], 1, 3, 3));
  });
}

TEST_F(FunctionsTest, Norms) {
  ExpectGradients({Random({5, 7}, "x"), Random({7}, "w"), Random({7}, "b")},
                  [](const Inputs& in) { return autograd::LayerNorm(in[0], in[1], in[2], 1e-5); });
  ExpectGradients({Random({2, 3, 8}, "x"), Random({8}, "w")},
                  [](const Inputs& in) { return autograd::RmsNorm(in[0], in[1], 1e-6); });
  ExpectGradients({Random({2, 3, 8}, "x"), Random({8}, "w")},
                  [](const Inputs& in) { return autograd::RmsNorm(in[0], in[1], 1e-6, 1); });
}

// Where differences say nothing: equal elements share the gradient, or the first gets it.
TEST_F(FunctionsTest, GradientsOfTies) {
  const auto gradients = [&](const auto& fn) {
    autograd::Parameter x("x", Tensor::FromVector<double>({1, 2, 2}, {3}, context_));
    autograd::Parameter y("y", Tensor::FromVector<double>({3, 2, 1}, {3}, context_));
    autograd::Backward(autograd::Sum(fn(x.value(), y.value())));
    return std::pair(x.grad().ToVector<double>(),
                     y.has_grad() ? y.grad().ToVector<double>() : std::vector<double>());
  };
  using Vector = std::vector<double>;
  EXPECT_EQ(gradients(autograd::Maximum), std::pair(Vector({0, 0.5, 1}), Vector({1, 0.5, 0})));
  EXPECT_EQ(gradients(autograd::Minimum), std::pair(Vector({1, 0.5, 0}), Vector({0, 0.5, 1})));
  EXPECT_EQ(gradients([](const Tensor& x, const Tensor&) { return autograd::Max(x, {0}); }).first,
            Vector({0, 1, 0}));
  EXPECT_EQ(gradients([](const Tensor& x, const Tensor&) {
              return autograd::Abs(autograd::Sub(x, x));
            }).first,
            Vector({0, 0, 0}));
}

TEST_F(FunctionsTest, SlicesOfOneTensorAddUp) {
  for (const int dim : {0, 1}) {
    ExpectGradients({Random({4, 4}, "x")}, [dim](const Inputs& in) {
      const Tensor x = autograd::Scale(in[0], 2);
      // Overlapping slices, and another use of x.
      const Tensor a = autograd::Slice(x, dim, 0, 3), b = autograd::Slice(x, dim, 1, 3);
      const Tensor c = autograd::Slice(autograd::Mul(x, x), dim, 0, 3);
      return autograd::Add(autograd::Mul(a, b), autograd::Add(c, autograd::Slice(x, dim, 0, 3)));
    });
  }
}

TEST_F(FunctionsTest, EmbeddingWithRepeatedIndices) {
  const Tensor ids = Tensor::FromVector<int64_t>({0, 3, 3, 1, 0, 3}, {2, 3}, context_);
  ExpectGradients({Random({5, 4}, "table")},
                  [ids](const Inputs& in) { return autograd::Embedding(ids, in[0]); });
  const Tensor bad = Tensor::FromVector<int64_t>({5}, {1}, context_);
  EXPECT_THROW(autograd::Embedding(bad, Random({5, 4}, "table")), Error);
}

TEST_F(FunctionsTest, EmbeddingWithPadding) {
  const Tensor ids = Tensor::FromVector<int64_t>({0, 3, 3, 1, 0, 3}, {2, 3}, context_);
  const auto gradient = [&](int64_t padding_id) {
    autograd::Parameter table("table", Random({5, 2}, "table"));
    const Tensor y = autograd::Embedding(ids, table.value(), {}, padding_id);
    EXPECT_EQ(y.ToVector<double>(), autograd::Embedding(ids, table.data()).ToVector<double>());
    autograd::Backward(autograd::Sum(y));
    return table.grad().ToVector<double>();
  };
  EXPECT_EQ(gradient(-1), std::vector<double>({2, 2, 1, 1, 0, 0, 3, 3, 0, 0}));
  EXPECT_EQ(gradient(3), std::vector<double>({2, 2, 1, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(gradient(0), std::vector<double>({0, 0, 1, 1, 0, 0, 3, 3, 0, 0}));
  EXPECT_THAT([&] { gradient(5); }, Says(HasSubstr("the padding id 5 is outside [0, 5)")));
  EXPECT_THAT([&] { gradient(-2); }, Says(HasSubstr("use -1 for none")));
}

TEST_F(FunctionsTest, CrossEntropyWithIgnoredTargets) {
  const Tensor targets = Tensor::FromVector<int64_t>({0, 6, -100, 3}, {4}, context_);
  ExpectGradients({Random({4, 7}, "logits")},
                  [targets](const Inputs& in) { return autograd::CrossEntropy(in[0], targets); });
  // The mean is over the three rows that count.
  const Tensor even = Tensor::Zeros({4, 7}, DType::kF64, context_);
  EXPECT_NEAR(autograd::CrossEntropy(even, targets).Item(), std::log(7.0), 1e-14);
  const Tensor bad = Tensor::FromVector<int64_t>({0, 7, 1, 3}, {4}, context_);
  EXPECT_THROW(autograd::CrossEntropy(Random({4, 7}, "logits"), bad), Error);
}

TEST_F(FunctionsTest, DropoutKeepsItsMask) {
  Generator generator(3);
  ExpectGradients({Random({8, 16}, "x")}, [&](const Inputs& in) {
    generator.set_next_stream(0);
    return autograd::Dropout(in[0], 0.4, generator);
  });
}

// A batch split over ranks is masked as the whole batch is.
TEST_F(FunctionsTest, DropoutDoesNotDependOnTheSplit) {
  const Tensor x = Tensor::Full({6, 10}, DType::kF64, 1.0, context_);
  Generator whole(5), part(5);
  const std::vector<double> expected = autograd::Dropout(x, 0.5, whole).ToVector<double>();
  std::vector<double> got;
  for (int64_t first : {0, 2, 4}) {
    part.set_next_stream(0);
    part.set_first_sample(first);
    const auto values = autograd::Dropout(x.Slice(0, first, 2), 0.5, part).ToVector<double>();
    got.insert(got.end(), values.begin(), values.end());
  }
  EXPECT_EQ(got, expected);
}

TEST_F(FunctionsTest, CastGivesTheGradientBackInTheInputsDType) {
  autograd::Parameter x("x", Random({4}, "x"));
  autograd::Backward(autograd::Sum(autograd::Cast(x.value(), DType::kF32)));
  EXPECT_EQ(x.grad().dtype(), DType::kF64);
  EXPECT_EQ(x.grad().ToVector<double>(), std::vector<double>(4, 1.0));
}

}  // namespace functions_test
}  // namespace apogee
