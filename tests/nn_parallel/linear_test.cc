// SPDX-License-Identifier: Apache-2.0

// Column- and row-parallel linear layers against the whole layers on one rank.
#include "apogee/nn/parallel/linear.h"

#include "apogee/autograd/engine.h"
#include "apogee/autograd/parameter.h"
#include "apogee/nn/parallel/shard.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::nn::parallel {
namespace linear_test {

using ::apogee::testing::RandomTensor;
using ::apogee::testing::RunRanks;
using autograd::Parameter;
using autograd::WeightLayout;
using comm::CollectiveKind;

constexpr int64_t kIn = 10, kHidden = 24, kOut = 7;

// Reference values may be far below 1, so that the bound is relative to them.
void ExpectSame(const Tensor& got, const Tensor& want, double tolerance) {
  ASSERT_EQ(got.shape(), want.shape());
  const std::vector<double> expected = want.ToVector<double>();
  double floor = 1e-300;
  for (double value : expected) floor = std::max(floor, std::abs(value));
  ExpectClose(got.ToVector<double>(), expected, tolerance, floor);
}

class ParallelLinearTest : public ::testing::TestWithParam<std::tuple<int, WeightLayout, DType>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  WeightLayout layout() const { return std::get<1>(GetParam()); }
  DType dtype() const { return std::get<2>(GetParam()); }
  bool out_in() const { return layout() == WeightLayout::kOutIn; }
  Shape WeightShape(int64_t in, int64_t out) const {
    return out_in() ? Shape{out, in} : Shape{in, out};
  }
  Tensor Random(const Shape& shape, const std::string& name, const comm::World& world) const {
    return RandomTensor(shape, name, world.context(), 0.5, dtype());
  }
};

// A block: column with bias and activation, then row with bias.
TEST_P(ParallelLinearTest, Block) {
  const TensorShard column{.dim = out_in() ? 0 : 1}, row{.dim = out_in() ? 1 : 0};
  RunRanks(size(), [&](comm::World& world) {
    const auto cut = [&](const TensorShard& shard, const Tensor& whole) {
      return CutLocal(shard, whole, world.rank(), world.size());
    };
    const Tensor x0 = Random({3, 5, kIn}, "x", world);
    const Tensor w1 = Random(WeightShape(kIn, kHidden), "w1", world);
    const Tensor w2 = Random(WeightShape(kHidden, kOut), "w2", world);
    const Tensor b1 = Random({kHidden}, "b1", world), b2 = Random({kOut}, "b2", world);
    struct Run {
      Parameter x, w1, b1, w2, b2;
    };
    const auto run = [&](Run& p, const comm::GroupPtr& group) {
      const Tensor h =
          ColumnParallelLinear(p.x.value(), p.w1.value(), p.b1.value(), group,
                               {.layout = layout(), .activation = Activation::kGeluTanh});
      const Tensor y = RowParallelLinear(h, p.w2.value(), p.b2.value(), group, layout());
      autograd::Backward(y, {.grad = Random(y.shape(), "dy", world)});
      return y.Detach();
    };
    Run whole{{"x", x0.Clone()}, {"w1", w1}, {"b1", b1}, {"w2", w2}, {"b2", b2}};
    Run local{{"x", x0.Clone()},
              {"w1", cut(column, w1)},
              {"b1", cut({.dim = 0}, b1)},
              {"w2", cut(row, w2)},
              {"b2", b2.Clone()}};
    const Tensor want = run(whole, nullptr);
    const Tensor got = run(local, world.group());

    const double tolerance = Tolerance(dtype(), ErrorKind::kGemm);
    ExpectSame(got, want, tolerance);
    ExpectSame(local.x.grad(), whole.x.grad(), tolerance);
    ExpectSame(local.w1.grad(), cut(column, whole.w1.grad()), tolerance);
    ExpectSame(local.b1.grad(), cut({.dim = 0}, whole.b1.grad()), tolerance);
    ExpectSame(local.w2.grad(), cut(row, whole.w2.grad()), tolerance);
    ExpectSame(local.b2.grad(), whole.b2.grad(), tolerance);
    if (world.group() == nullptr) return;
    // The block's output forward, its input's gradient backward, and nothing else.
    const comm::Traffic& traffic = world.group()->traffic();
    EXPECT_EQ(traffic.calls(CollectiveKind::kAllReduce), 2);
    EXPECT_EQ(traffic.bytes(CollectiveKind::kAllReduce), 15 * (kOut + kIn) * DTypeSize(dtype()));
    EXPECT_EQ(traffic.total_calls(), 2);
  });
}

// Fused q, k, v: a rank's output is its part of each third.
TEST_P(ParallelLinearTest, FusedSections) {
  const TensorShard qkv{.dim = out_in() ? 0 : 1, .sections = 3};
  RunRanks(size(), [&](comm::World& world) {
    const auto cut = [&](const TensorShard& shard, const Tensor& whole) {
      return CutLocal(shard, whole, world.rank(), world.size());
    };
    const Tensor x = Random({4, kIn}, "x", world), bias = Random({36}, "b", world);
    const Tensor weight = Random(WeightShape(kIn, 36), "w", world);
    const Tensor want = autograd::Linear(x, weight, bias, {.layout = layout()});
    const Tensor got =
        ColumnParallelLinear(x, cut(qkv, weight), cut({.dim = 0, .sections = 3}, bias),
                             world.group(), {.layout = layout()});
    ExpectSame(got, cut({.dim = 1, .sections = 3}, want), Tolerance(dtype(), ErrorKind::kGemm));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ParallelLinearTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(WeightLayout::kOutIn,
                                                              WeightLayout::kInOut),
                                            ::testing::Values(DType::kF64, DType::kF32)));

// As under one rank, the bias's gradient has the dtype its owner asks for.
TEST(RowParallelLinearTest, BiasGradientInF32) {
  RunRanks(2, [](comm::World& world) {
    Parameter bias("b", Tensor::Zeros({3}, DType::kBF16, world.context()));
    bias.set_grad_dtype(DType::kF32);
    const Tensor x = Tensor::Full({500, 2}, DType::kBF16, 1, world.context());
    const Tensor weight = Tensor::Full({3, 2}, DType::kBF16, 1, world.context());
    const Tensor y = RowParallelLinear(x, weight, bias.value(), world.group());
    EXPECT_EQ(y.ToVector<double>(), std::vector<double>(1500, 4));
    autograd::Backward(y,
                       {.grad = Tensor::Full({500, 3}, DType::kBF16, 1.0078125, world.context())});
    ASSERT_EQ(bias.grad().dtype(), DType::kF32);
    EXPECT_EQ(bias.grad().ToVector<double>(), std::vector<double>(3, 503.90625));
  });
}

// A result for an f32 residual stream is rounded nowhere, with or without a cut sequence. Gradients
// travel in bf16.
TEST(RowParallelLinearTest, AResultOfOutDTypeIsNotRounded) {
  RunRanks(2, [](comm::World& world) {
    Parameter bias("b", Tensor::Full({3}, DType::kBF16, 0.5, world.context()));
    bias.set_grad_dtype(DType::kF32);
    Parameter x("x", Tensor::Full({1, 4, 2}, DType::kBF16, 1.0078125, world.context()));
    const Tensor weight = Tensor::Full({3, 2}, DType::kBF16, 1.0078125, world.context());
    // On each of 2 ranks 2 addends of 1.0078125^2, which bf16 cannot represent.
    const double want = 4 * 1.0078125 * 1.0078125 + 0.5;
    const auto grad = [&](int64_t tokens) {
      return Tensor::Full({1, tokens, 3}, DType::kF32, 1.001, world.context());
    };
    const auto f32 = [](double value) { return static_cast<double>(static_cast<float>(value)); };
    const Tensor y = RowParallelLinear(x.value(), weight, bias.value(), world.group(),
                                       WeightLayout::kOutIn, DType::kF32);
    ASSERT_EQ(y.dtype(), DType::kF32);
    EXPECT_EQ(y.ToVector<double>(), std::vector<double>(12, want));
    autograd::Backward(y, {.grad = grad(4)});
    for (const double each : bias.grad().ToVector<double>()) EXPECT_NEAR(each, f32(4.004), 1e-6);
    bias.zero_grad();
    const int64_t before = world.group()->traffic().bytes(CollectiveKind::kAllGather);
    const Tensor own = RowParallelLinearOfTokens(x.value(), weight, bias.value(), world.group(),
                                                 WeightLayout::kOutIn, DType::kF32);
    ASSERT_EQ(own.dtype(), DType::kF32);
    EXPECT_EQ(own.ToVector<double>(), std::vector<double>(6, want));
    autograd::Backward(own, {.grad = grad(2)});
    for (const double each : bias.grad().ToVector<double>()) EXPECT_NEAR(each, f32(2.002), 1e-6);
    const int64_t bytes = world.group()->traffic().bytes(CollectiveKind::kAllGather) - before;
    EXPECT_EQ(bytes, 4 * 3 * DTypeSize(DType::kBF16));
  });
}

// The sum over ranks is rounded once, as one rank's product is: addends that were rounded before
// would change every third element of a bf16 result.
TEST(ParallelLinearRoundingTest, AlmostAllBitsAreThoseOfOneRank) {
  RunRanks(4, [](comm::World& world) {
    const auto random = [&](const Shape& shape, const std::string& name) {
      return RandomTensor(shape, name, world.context(), 0.5, DType::kBF16);
    };
    const auto expect_close = [](const Tensor& got, const Tensor& want) {
      const std::vector<double> a = got.ToVector<double>(), b = want.ToVector<double>();
      int64_t differ = 0;
      for (size_t i = 0; i < a.size(); ++i) differ += a[i] == b[i] ? 0 : 1;
      EXPECT_LE(differ, static_cast<int64_t>(a.size() / 50)) << "of " << a.size();
    };
    const auto cut = [&](const Tensor& whole, int dim) {
      return CutLocal({.dim = dim}, whole, world.rank(), world.size());
    };
    const Tensor x = random({64, 32}, "x"), w = random({48, 32}, "w");
    expect_close(RowParallelLinear(cut(x, 1), cut(w, 1), {}, world.group()),
                 autograd::Linear(x, w, {}));
    Parameter whole("x", x.Clone()), local("x", x.Clone());
    const Tensor dy = random({64, 48}, "dy");
    autograd::Backward(autograd::Linear(whole.value(), w, {}), {.grad = dy});
    autograd::Backward(ColumnParallelLinear(local.value(), cut(w, 0), {}, world.group()),
                       {.grad = cut(dy, 1)});
    EXPECT_EQ(local.grad().dtype(), DType::kBF16);
    expect_close(local.grad(), whole.grad());
  });
}

}  // namespace linear_test
}  // namespace apogee::nn::parallel
