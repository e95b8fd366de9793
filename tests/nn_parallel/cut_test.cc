// SPDX-License-Identifier: Apache-2.0

// Where a graph's tensors are this rank's columns, and what random masks make of them.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/parameter.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/nn/parallel/linear.h"
#include "apogee/nn/parallel/sequence_functions.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn::parallel {
namespace cut_test {

using autograd::IsCut;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;

TEST(CutTest, FromAColumnLayerToASumOrAGather) {
  RunRanks(2, [](comm::World& world) {
    const comm::GroupPtr group = world.group();
    const auto ones = [&](const char* name, const Shape& shape) {
      return Parameter(name, Tensor::Full(shape, DType::kF32, 1, world.context()));
    };
    const Parameter x = ones("x", {2, 4, 6}), up = ones("up", {3, 6}), down = ones("down", {6, 3});
    EXPECT_FALSE(IsCut(x.value()));
    EXPECT_FALSE(IsCut(Tensor::Full({2, 6}, DType::kF32, 1, world.context())));
    const Tensor h = ColumnParallelLinear(x.value(), up.value(), {}, group);
    EXPECT_TRUE(IsCut(h));
    const Tensor a = autograd::Gelu(h);
    EXPECT_TRUE(IsCut(a));
    EXPECT_FALSE(IsCut(RowParallelLinear(a, down.value(), {}, group)));
    EXPECT_FALSE(IsCut(RowParallelLinearOfTokens(a, down.value(), {}, group)));
    const Tensor whole = GatherLastDim(a, group);
    EXPECT_FALSE(IsCut(whole));
    EXPECT_FALSE(IsCut(autograd::Add(x.value(), whole)));
    EXPECT_TRUE(IsCut(SplitLastDim(whole, group)));

    Generator generator(1);
    EXPECT_NO_THROW(autograd::Dropout(whole, 0.5, generator));
    EXPECT_NO_THROW(autograd::Dropout(a, 0.5, generator, {.first = 3 * group->rank(), .total = 6}));
    EXPECT_NO_THROW(autograd::Dropout(a, 0, generator));
    EXPECT_THAT([&] { autograd::Dropout(a, 0.5, generator); },
                Says(HasSubstr("a rule of the plan can name (ParallelStyle::kDropout)")));
    nn::Container model;
    const auto drop = model.Register("drop", std::make_shared<nn::Dropout>(0.5));
    EXPECT_THAT([&] { (*drop)(a); },
                Says(HasSubstr("{.pattern = \"drop\", .style = ParallelStyle::kDropout}")));
    model.Train(false);
    EXPECT_NO_THROW((*drop)(a));
  });
}

}  // namespace cut_test
}  // namespace apogee::nn::parallel
