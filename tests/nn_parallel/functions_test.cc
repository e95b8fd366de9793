// SPDX-License-Identifier: Apache-2.0

// Differentiable collectives on 1 to 4 ranks: values, gradients, traffic.
#include "apogee/nn/parallel/functions.h"

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::nn::parallel {
namespace functions_test {

using ::apogee::testing::RandomTensor;
using ::apogee::testing::RunRanks;
using autograd::Parameter;
using comm::CollectiveKind;

class ParallelFunctionsTest : public ::testing::TestWithParam<int> {};

// sum_r (r + 1) x, through a different use of x on every rank.
TEST_P(ParallelFunctionsTest, CopyAndReduce) {
  RunRanks(GetParam(), [](comm::World& world) {
    Parameter x("x", RandomTensor({3, 5}, "x", world.context()));
    const Tensor own = autograd::Scale(CopyToGroup(x.value(), world.group()), world.rank() + 1);
    const std::vector<double> before = own.ToVector<double>();
    const Tensor sum = ReduceFromGroup(own, world.group());
    EXPECT_EQ(own.ToVector<double>(), before) << "the caller still holds the addend";
    const Tensor dy = RandomTensor({3, 5}, "dy", world.context());
    autograd::Backward(sum, {.grad = dy});

    const int size = world.size();
    const double factor = size * (size + 1) / 2.0;
    ExpectClose(sum.ToVector<double>(), autograd::Scale(x.data(), factor).ToVector<double>(),
                1e-14);
    ExpectClose(x.grad().ToVector<double>(), autograd::Scale(dy, factor).ToVector<double>(), 1e-14);
    EXPECT_EQ(dy.ToVector<double>(),
              RandomTensor({3, 5}, "dy", world.context()).ToVector<double>());
    if (world.group() == nullptr) return;
    EXPECT_EQ(world.group()->traffic().calls(CollectiveKind::kAllReduce), 2);
    EXPECT_EQ(world.group()->traffic().bytes(CollectiveKind::kAllReduce), 2 * 15 * 8);
    EXPECT_EQ(world.group()->traffic().total_calls(), 2);
  });
}

// x^2, each rank squaring its columns.
TEST_P(ParallelFunctionsTest, SplitAndGather) {
  RunRanks(GetParam(), [](comm::World& world) {
    Parameter x("x", RandomTensor({2, 3, 24}, "x", world.context()));
    const Tensor part = SplitLastDim(x.value(), world.group());
    EXPECT_EQ(part.shape(), (Shape{2, 3, 24 / world.size()}));
    const Tensor y = GatherLastDim(autograd::Mul(part, part), world.group());
    const Tensor dy = RandomTensor({2, 3, 24}, "dy", world.context());
    autograd::Backward(y, {.grad = dy});

    const Tensor want = autograd::Mul(x.data(), x.data());
    const Tensor want_grad = autograd::Scale(autograd::Mul(x.data(), dy), 2);
    ExpectClose(y.ToVector<double>(), want.ToVector<double>(), 0);
    ExpectClose(x.grad().ToVector<double>(), want_grad.ToVector<double>(), 1e-14);
    if (world.group() == nullptr) return;
    EXPECT_EQ(world.group()->traffic().calls(CollectiveKind::kAllGather), 2);
    EXPECT_EQ(world.group()->traffic().bytes(CollectiveKind::kAllGather), 2 * 144 * 8);
    EXPECT_EQ(world.group()->traffic().total_calls(), 2);
  });
}

// Sums of halves are rounded once, to the tensor's dtype.
TEST_P(ParallelFunctionsTest, KeepsTheDType) {
  RunRanks(GetParam(), [](comm::World& world) {
    const Tensor x = Tensor::Full({4}, DType::kBF16, 1.0 / (world.rank() + 1), world.context());
    const Tensor sum = ReduceFromGroup(x, world.group());
    ASSERT_EQ(sum.dtype(), DType::kBF16);
    double want = 0;
    for (int r = 0; r < world.size(); ++r) {
      want += static_cast<float>(BFloat16(1.0f / static_cast<float>(r + 1)));
    }
    ExpectClose(sum.ToVector<double>(), std::vector<double>(4, want), 1.0 / 256);
  });
}

TEST_P(ParallelFunctionsTest, WithoutGradientNothingIsRecorded) {
  RunRanks(GetParam(), [](comm::World& world) {
    const Tensor x = RandomTensor({2, 12}, "x", world.context());
    EXPECT_EQ(CopyToGroup(x, world.group()).raw(), x.raw());
    for (const Tensor& y : {CopyToGroup(x, world.group()), SplitLastDim(x, world.group()),
                            ReduceFromGroup(x, world.group()), GatherLastDim(x, world.group())}) {
      EXPECT_EQ(autograd::MetaOf(y), nullptr);
    }
  });
}

TEST(ParallelFunctionsErrorTest, SplitNeedsADivisor) {
  RunRanks(3, [](comm::World& world) {
    const Tensor x = RandomTensor({2, 8}, "x", world.context());
    EXPECT_THROW(SplitLastDim(x, world.group()), Error);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ParallelFunctionsTest, ::testing::Values(1, 2, 3, 4));

}  // namespace functions_test
}  // namespace apogee::nn::parallel
