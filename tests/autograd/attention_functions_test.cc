// SPDX-License-Identifier: Apache-2.0

// Attention and rotary positions against finite differences in f64.
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
namespace attention_functions_test {

using testing::ExpectGradients;
using testing::RandomTensor;
using testing::Says;
using Inputs = std::vector<Tensor>;
using ::testing::HasSubstr;

class AttentionFunctionsTest : public ::testing::Test {
 protected:
  Tensor Random(const Shape& shape, const std::string& name, double std = 1.0) {
    return RandomTensor(shape, name, context_, std);
  }
  ContextPtr context_ = TestContext({.num_threads = 2});
};

TEST_F(AttentionFunctionsTest, AttentionPackedAndGrouped) {
  ExpectGradients({Random({2, 5, 3 * 8}, "qkv")},
                  [](const Inputs& in) { return autograd::PackedAttention(in[0], 2); });
  for (bool causal : {true, false}) {
    ExpectGradients(
        {Random({2, 5, 4, 6}, "q"), Random({2, 7, 2, 6}, "k"), Random({2, 7, 2, 6}, "v")},
        [causal](const Inputs& in) {
          return autograd::Attention(in[0], in[1], in[2], {.scale = 0.3, .causal = causal});
        });
  }
}

TEST_F(AttentionFunctionsTest, AttentionWithMasks) {
  const Tensor q = Random({2, 5, 4, 6}, "q"), k = Random({2, 7, 2, 6}, "k");
  const Tensor v = Random({2, 7, 2, 6}, "v");
  const Tensor is_word = Tensor::FromVector<uint8_t>({1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1},
                                                     {2, 1, 1, 7}, context_);
  ExpectGradients({q, k, v}, [=](const Inputs& in) {
    return autograd::Attention(in[0], in[1], in[2], {.causal = false, .mask = is_word});
  });
  ExpectGradients({q, k, v}, [=](const Inputs& in) {
    return autograd::Attention(in[0], in[1], in[2], {.window = 3});
  });
  ExpectGradients({q, k, v, Random({4, 5, 7}, "bias")}, [](const Inputs& in) {
    return autograd::Attention(in[0], in[1], in[2], {.causal = false, .mask = in[3]});
  });
  for (const Shape& shape : {Shape{2, 4, 5, 7}, Shape{5, 7}, Shape{2, 1, 1, 7}}) {
    ExpectGradients({Random(shape, "bias")}, [=](const Inputs& in) {
      return autograd::Attention(q, k, v, {.causal = false, .mask = in[0]});
    });
  }
  ExpectGradients({Random({2, 5, 3 * 8}, "qkv"), Random({2, 5, 5}, "bias")}, [](const Inputs& in) {
    return autograd::PackedAttention(in[0], 2, {.mask = in[1]});
  });
}

TEST_F(AttentionFunctionsTest, AttentionWithASoftCap) {
  const Tensor q = Random({1, 3, 2, 4}, "q"), k = Random({1, 5, 1, 4}, "k");
  const Tensor v = Random({1, 5, 1, 4}, "v");
  ExpectGradients({q, k, v}, [](const Inputs& in) {
    return autograd::Attention(in[0], in[1], in[2], {.soft_cap = 0.7});
  });
  ExpectGradients({q, k, v}, [](const Inputs& in) {
    return autograd::Attention(in[0], in[1], in[2], {.scale = 0.8, .window = 3, .soft_cap = 0.7});
  });
  // The bias is not capped, nor is its gradient.
  ExpectGradients({q, k, v, Random({2, 3, 5}, "bias", 3)}, [](const Inputs& in) {
    return autograd::Attention(in[0], in[1], in[2],
                               {.causal = false, .mask = in[3], .soft_cap = 0.7});
  });
  ExpectGradients({Random({1, 4, 3 * 4}, "qkv")}, [](const Inputs& in) {
    return autograd::PackedAttention(in[0], 2, {.scale = -0.5, .soft_cap = 0.7});
  });
  for (const double cap : {-1.0, double{NAN}, double{INFINITY}}) {
    EXPECT_THAT([&] { autograd::Attention(q, k, v, {.soft_cap = cap}); },
                Says(HasSubstr("the soft cap must be above 0 and finite, or 0 for none")));
  }
}

// As in ring attention: queries attend to two sets of keys, one after the other.
TEST_F(AttentionFunctionsTest, ASoftCapOverTwoSetsOfKeys) {
  const ops::Qkv all{Random({2, 5, 4, 6}, "q"), Random({2, 9, 2, 6}, "k"),
                     Random({2, 9, 2, 6}, "v")};
  const Tensor dout = Random({2, 5, 4, 6}, "dout");
  const auto gradients = [&](const ops::Qkv& qkv, const ops::AttentionResult& forward,
                             const autograd::AttentionOptions& options) {
    const ops::Qkv grads{Tensor::EmptyLike(qkv.q), Tensor::EmptyLike(qkv.k),
                         Tensor::EmptyLike(qkv.v)};
    ops::AttentionBackward(qkv, forward, dout, options, grads);
    return grads;
  };
  const autograd::AttentionOptions causal{.wide = true, .soft_cap = 0.7};
  const autograd::AttentionOptions earlier{.causal = false, .wide = true, .soft_cap = 0.7};
  const ops::AttentionResult whole = ops::AttentionForward(all, causal);
  const ops::Qkv want = gradients(all, whole, causal);
  const auto keys = [&](int64_t first, int64_t count) {
    return ops::Qkv{all.q, all.k.Slice(1, first, count), all.v.Slice(1, first, count)};
  };
  const ops::AttentionResult sum = ops::AttentionForward(keys(4, 5), causal);
  ops::AttentionMerge(sum, ops::AttentionForward(keys(0, 4), earlier));
  const ops::Qkv late = gradients(keys(4, 5), sum, causal);
  const ops::Qkv early = gradients(keys(0, 4), sum, earlier);
  const auto expect_near = [](const Tensor& got, const Tensor& expected) {
    const std::vector<double> a = got.ToVector<double>(), b = expected.ToVector<double>();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-13) << i;
  };
  expect_near(sum.out, whole.out);
  expect_near(sum.lse, whole.lse);
  expect_near(ops::Add(late.q, early.q), want.q);
  expect_near(early.k, want.k.Slice(1, 0, 4));
  expect_near(late.k, want.k.Slice(1, 4, 5));
  expect_near(early.v, want.v.Slice(1, 0, 4));
  expect_near(late.v, want.v.Slice(1, 4, 5));
}

TEST_F(AttentionFunctionsTest, MasksThatDoNotFit) {
  const Tensor q = Random({2, 5, 4, 6}, "q"), k = Random({2, 7, 2, 6}, "k");
  const auto attend = [&](const autograd::AttentionOptions& options) {
    return [=] { autograd::Attention(q, k, k, options); };
  };
  EXPECT_THAT(attend({.mask = Random({2, 3, 5, 7}, "mask")}),
              Says(HasSubstr("the mask [2, 3, 5, 7] does not broadcast to [2, 4, 5, 7]")));
  EXPECT_THAT(attend({.mask = Tensor::Zeros({5, 7}, DType::kI64, context_)}),
              Says(HasSubstr("the mask must be u8 (1: a key is seen) or")));
  EXPECT_THAT(attend({.causal = false, .window = 3}), Says(HasSubstr("needs causal attention")));
  EXPECT_THAT(attend({.window = -3}), Says(HasSubstr("a window of -3")));
  EXPECT_THAT(attend({.scale = -1, .mask = Random({5, 7}, "mask")}),
              Says(HasSubstr("the scale must be above 0")));
}

// Queries, keys and values lie side by side in a packed projection, in this order.
TEST_F(AttentionFunctionsTest, PackedAttentionIsAttentionOfItsThirds) {
  const Tensor qkv = Random({2, 5, 3 * 8}, "qkv");
  const auto third = [&](int64_t i) {
    return qkv.Slice(2, 8 * i, 8).Contiguous().View({2, 5, 2, 4});
  };
  const Tensor expected = autograd::Attention(third(0), third(1), third(2));
  EXPECT_EQ(autograd::PackedAttention(qkv, 2).ToVector<double>(), expected.ToVector<double>());
}

TEST_F(AttentionFunctionsTest, Rotary) {
  ExpectGradients({Random({2, 5, 3, 4}, "x")}, [](const Inputs& in) {
    return autograd::Rotary(in[0], {.theta = 100, .first_position = 3});
  });
  ExpectGradients({Random({2, 5, 3, 7}, "x")}, [](const Inputs& in) {
    return autograd::Rotary(in[0], {.dims = 4, .inverse_frequencies = {0.7, 0.1}});
  });
}

TEST_F(AttentionFunctionsTest, RotaryThatDoesNotFit) {
  const Tensor x = Random({2, 5, 3, 6}, "x");
  const auto rotate = [&](const autograd::RotaryOptions& options) {
    return [=] { autograd::Rotary(x, options); };
  };
  EXPECT_THAT(rotate({.dims = 8}), Says(HasSubstr("8 elements of each head of 6 cannot rotate")));
  EXPECT_THAT(rotate({.dims = 3}), Says(HasSubstr("`dims` must be even")));
  EXPECT_THAT(rotate({.dims = -2}), Says(HasSubstr("-2 elements of each head of 6")));
  EXPECT_THAT(
      [&] {
        autograd::Rotary(Random({2, 5, 3, 5}, "x"));
      },
      Says(HasSubstr("5 elements of each head of 5")));
  EXPECT_THAT(rotate({.dims = 4, .inverse_frequencies = {1, 0.5, 0.25}}),
              Says(HasSubstr("3 inverse frequencies for 2 pairs")));
}

}  // namespace attention_functions_test
}  // namespace apogee
