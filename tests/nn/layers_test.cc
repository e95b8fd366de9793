// SPDX-License-Identifier: Apache-2.0

// Settings of the layers in layers.h.
#include "apogee/nn/layers.h"

#include <gmock/gmock.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn {
namespace layers_test {

using ::apogee::testing::RandomTensor;
using ::apogee::testing::Says;
using ::testing::HasSubstr;
using Texts = std::map<std::string, std::string>;

TEST(RmsNormTest, TheOffsetIsPartOfTheFactorsAndOfTheConfig) {
  const ContextPtr context = CpuContext();
  RmsNorm plain(6, 1e-5), shifted(6, 1e-5, 1);
  plain.Initialize(context, {.dtype = DType::kF64});
  shifted.Initialize(context, {.dtype = DType::kF64});
  const Tensor x = RandomTensor({3, 6}, "x", context);
  EXPECT_EQ(plain(x).ToVector<double>(), shifted(x).ToVector<double>());
  const ParameterPtr weight = shifted.FindParameter("weight");
  EXPECT_EQ(weight->data().ToVector<double>(), std::vector<double>(6, 0.0));
  weight->data().Fill(0.25);
  EXPECT_EQ(
      autograd::RmsNorm(x, Tensor::Full({6}, DType::kF64, 1.25, context), 1e-5).ToVector<double>(),
      shifted(x).ToVector<double>());
  EXPECT_EQ(ConfigOf(plain).function, (Texts{{"eps", "1e-05"}}));
  EXPECT_EQ(ConfigOf(shifted).function, (Texts{{"eps", "1e-05"}, {"weight_offset", "1"}}));
}

TEST(EmbeddingTest, PaddingLearnsNothing) {
  const ContextPtr context = CpuContext();
  Embedding plain(4, 3), padded(4, 3, Init::Normal(0, 1), 2);
  plain.Initialize(context, {.dtype = DType::kF64});
  padded.Initialize(context, {.dtype = DType::kF64});
  const Tensor tokens = Tensor::FromVector<int64_t>({2, 0, 2, 3}, {2, 2}, context);
  const Tensor y = padded(tokens);
  EXPECT_EQ(y.ToVector<double>(), plain(tokens).ToVector<double>());
  autograd::Backward(autograd::Sum(y));
  EXPECT_EQ(padded.weight()->grad().ToVector<double>(),
            std::vector<double>({1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(padded.padding_id(), 2);
  EXPECT_EQ(ConfigOf(padded).training, (Texts{{"padding_id", "2"}}));
  EXPECT_EQ(ConfigOf(padded).function, Texts());
  EXPECT_EQ(ConfigOf(plain).training, Texts());
  EXPECT_THAT([] { Embedding(4, 3, Init::Normal(0, 1), 4); },
              Says(HasSubstr("the padding id 4 is outside [0, 4)")));
}

}  // namespace layers_test
}  // namespace apogee::nn
