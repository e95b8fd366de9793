// SPDX-License-Identifier: Apache-2.0

// Norms of activations whose heads ranks share, against the norms of whole activations.
#include "apogee/nn/parallel/norm.h"

#include <gmock/gmock-matchers.h>

#include <algorithm>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/parameter.h"
#include "apogee/nn/parallel/shard.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::nn::parallel {
namespace norm_test {

using ::apogee::testing::RandomTensor;
using ::apogee::testing::RunRanks;
using autograd::Parameter;
using comm::CollectiveKind;

constexpr int64_t kHeads = 12, kHeadDim = 3, kColumns = kHeads * kHeadDim;
constexpr double kEps = 1e-3;

void ExpectSame(const Tensor& got, const Tensor& want, double tolerance) {
  ASSERT_EQ(got.shape(), want.shape());
  EXPECT_EQ(got.dtype(), want.dtype());
  const std::vector<double> expected = want.ToVector<double>();
  double floor = 1e-300;
  for (double value : expected) floor = std::max(floor, std::abs(value));
  ExpectClose(got.ToVector<double>(), expected, tolerance, floor);
}

// Of 16 bits with gradients in f32, as plugins ask for.
struct Weight : Parameter {
  Weight(const char* name, const Tensor& value) : Parameter(name, value.Clone()) {
    set_grad_dtype(ComputeDType(value.dtype()));
  }
};

struct Case {
  int ranks;
  DType x, weight;
  double offset;
};

class ParallelNormTest : public ::testing::TestWithParam<Case> {
 protected:
  double Bound() const { return Tolerance(GetParam().weight, ErrorKind::kReduction); }
  Tensor Random(const Shape& shape, const char* name, DType dtype, const comm::World& world) const {
    return RandomTensor(shape, name, world.context(), 0.5, dtype);
  }
  // The definition: the norm of all columns, by a weight to which the offset has been added.
  static Tensor Whole(const Tensor& x, const Tensor& weight, double offset) {
    if (offset == 0) return autograd::RmsNorm(x, weight, kEps);
    const DType wide = ComputeDType(weight.dtype());
    const Tensor sum =
        autograd::Add(autograd::Cast(weight, wide), Tensor::Full({1}, wide, offset, x.context()));
    return autograd::Cast(autograd::RmsNorm(autograd::Cast(x, wide), sum, kEps), weight.dtype());
  }
};

TEST_P(ParallelNormTest, ColumnsOfWholeRows) {
  const auto [ranks, x_dtype, weight_dtype, offset] = GetParam();
  RunRanks(ranks, [&](comm::World& world) {
    const auto cut = [&](const Tensor& whole) {
      return CutLocal({.dim = -1}, whole, world.rank(), world.size());
    };
    const Tensor dy = Random({3, 5, kColumns}, "dy", weight_dtype, world);
    Parameter x("x", Random({3, 5, kColumns}, "x", x_dtype, world));
    Weight weight("weight", Random({kColumns}, "weight", weight_dtype, world));
    const Tensor want = Whole(x.value(), weight.value(), offset);
    autograd::Backward(want, {.grad = dy});

    Parameter own_x("x", cut(x.data()));
    Weight own_weight("weight", cut(weight.data()));
    const Tensor y =
        RmsNormOfColumns(own_x.value(), own_weight.value(), kEps, world.group(), offset);
    autograd::Backward(y, {.grad = cut(dy)});
    ExpectSame(y, cut(want), Bound());
    ExpectSame(own_x.grad(), cut(x.grad()), Bound());
    ExpectSame(own_weight.grad(), cut(weight.grad()), Bound());
    if (world.group() == nullptr) return;
    const comm::Traffic& traffic = world.group()->traffic();
    EXPECT_EQ(traffic.total_calls(), 2);
    EXPECT_EQ(traffic.bytes(CollectiveKind::kAllReduce),
              2 * 15 * DTypeSize(ComputeDType(weight_dtype)));
  });
}

TEST_P(ParallelNormTest, Heads) {
  const auto [ranks, x_dtype, weight_dtype, offset] = GetParam();
  RunRanks(ranks, [&](comm::World& world) {
    const auto cut = [&](const Tensor& whole) {
      return CutLocal({.dim = 2}, whole, world.rank(), world.size());
    };
    const Shape shape{2, 4, kHeads, kHeadDim};
    const Tensor dy = Random(shape, "dy", weight_dtype, world);
    Parameter x("x", Random(shape, "x", x_dtype, world));
    Weight weight("weight", Random({kHeadDim}, "weight", weight_dtype, world));
    const Tensor want = Whole(x.value(), weight.value(), offset);
    autograd::Backward(want, {.grad = dy});

    Parameter own_x("x", cut(x.data()));
    Weight own_weight("weight", weight.data());
    const Tensor y = RmsNormOfHeads(own_x.value(), own_weight.value(), kEps, world.group(), offset);
    autograd::Backward(y, {.grad = cut(dy)});
    ExpectSame(y, cut(want), Bound());
    ExpectSame(own_x.grad(), cut(x.grad()), Bound());
    // Not rounded to 16 bits anywhere.
    ExpectSame(own_weight.grad(), weight.grad(),
               Tolerance(own_weight.grad().dtype(), ErrorKind::kReduction));
    if (world.group() == nullptr) return;
    const comm::Traffic& traffic = world.group()->traffic();
    EXPECT_EQ(traffic.total_calls(), 1);
    EXPECT_EQ(traffic.bytes(CollectiveKind::kAllReduce),
              kHeadDim * DTypeSize(ComputeDType(weight_dtype)));
  });
}

TEST_P(ParallelNormTest, LayerNormOfHeads) {
  const auto [ranks, x_dtype, weight_dtype, offset] = GetParam();
  RunRanks(ranks, [&](comm::World& world) {
    const auto cut = [&](const Tensor& whole) {
      return CutLocal({.dim = 2}, whole, world.rank(), world.size());
    };
    const Shape shape{2, 4, kHeads, kHeadDim};
    const Tensor dy = Random(shape, "dy", weight_dtype, world);
    const Tensor x = Random(shape, "x", x_dtype, world);
    Weight weight("weight", Random({kHeadDim}, "weight", weight_dtype, world));
    Weight bias("bias", Random({kHeadDim}, "bias", weight_dtype, world));
    const Tensor want = autograd::LayerNorm(x, weight.value(), bias.value(), kEps);
    autograd::Backward(want, {.grad = dy});
    Weight own_weight("weight", weight.data());
    Weight own_bias("bias", bias.data());
    const Tensor y =
        LayerNormOfHeads(cut(x), own_weight.value(), own_bias.value(), kEps, world.group());
    autograd::Backward(y, {.grad = cut(dy)});
    ExpectSame(y, cut(want), Bound());
    const double tolerance = Tolerance(own_weight.grad().dtype(), ErrorKind::kReduction);
    ExpectSame(own_weight.grad(), weight.grad(), tolerance);
    ExpectSame(own_bias.grad(), bias.grad(), tolerance);
  });
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      cases.push_back({ranks, dtype, dtype, 0});
    }
    cases.push_back({ranks, DType::kF32, DType::kBF16, 0});
    cases.push_back({ranks, DType::kF64, DType::kF64, 1});
    cases.push_back({ranks, DType::kBF16, DType::kBF16, 1});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Worlds, ParallelNormTest, ::testing::ValuesIn(Cases()));

TEST(ParallelNormErrorTest, ShapesAndDTypes) {
  RunRanks(1, [](comm::World& world) {
    const auto call = [&](const Shape& shape, DType dtype, const Shape& weight) {
      return [=, &world] {
        RmsNormOfColumns(Tensor::Zeros(shape, dtype, world.context()),
                         Tensor::Zeros(weight, DType::kF32, world.context()), kEps, nullptr);
      };
    };
    EXPECT_THAT(call({2, 4}, DType::kF32, {3}),
                testing::Says(::testing::HasSubstr("needs x [.., columns] and weight [columns], "
                                                   "got [2, 4] and [3]")));
    EXPECT_THAT(call({2, 4}, DType::kBF16, {4}),
                testing::Says(::testing::HasSubstr("x is bf16 and the weight f32")));
  });
}

}  // namespace norm_test
}  // namespace apogee::nn::parallel
