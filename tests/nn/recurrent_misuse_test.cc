// SPDX-License-Identifier: Apache-2.0

// What nn::Gru and nn::Lstm refuse.
#include <gtest/gtest.h>

#include "apogee/nn/layers.h"
#include "apogee/nn/recurrent.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::nn {
namespace recurrent_misuse_test {

using ::apogee::testing::Says;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RecurrentMisuseTest : public ::testing::TestWithParam<bool> {
 protected:
  static std::shared_ptr<Recurrent> Make(int64_t features, int64_t units,
                                         const RecurrentOptions& options) {
    if (GetParam()) return std::make_shared<Lstm>(features, units, options);
    return std::make_shared<Gru>(features, units, options);
  }
  static bool is_lstm() { return GetParam(); }

  const ContextPtr context_ = TestContext();
};
INSTANTIATE_TEST_SUITE_P(Kinds, RecurrentMisuseTest, ::testing::Bool());

TEST_P(RecurrentMisuseTest, WhatDoesNotFitIsRefused) {
  Container root;
  const auto module = root.Register("rnn", Make(4, 5, {.num_layers = 2}));
  module->Initialize(context_, {.dtype = DType::kF64});
  const auto call = [&](const Shape& shape) {
    return [=, this] { (*module)(Tensor::Zeros(shape, DType::kF64, context_)); };
  };
  const std::string name = std::string(is_lstm() ? "lstm" : "gru") + " \"rnn\": ";
  EXPECT_THAT(call({3, 4}), Says(HasSubstr(name + "needs x [samples, steps, 4], got [3, 4]")));
  EXPECT_THAT(call({2, 3, 5}), Says(HasSubstr("needs x [samples, steps, 4], got [2, 3, 5]")));
  EXPECT_THAT(call({2, 0, 4}), Says(HasSubstr("needs at least one step, got [2, 0, 4]")));
  EXPECT_THAT([&] { (*module)(Tensor()); }, Says(HasSubstr("x is undefined")));
  EXPECT_THAT(
      [&] {
        (*module)(Tensor::Zeros({2, 3, 4}, DType::kF32, context_));
      },
      Says(AllOf(HasSubstr("f32"), HasSubstr("f64"), HasSubstr("autograd::Cast"))));
  const Tensor x = Tensor::Zeros({2, 3, 4}, DType::kF64, context_);
  const auto from = [&](const Shape& h, DType dtype) {
    return [=, this] { module->Run(x, {.h = Tensor::Zeros(h, dtype, context_), .c = {}}); };
  };
  EXPECT_THAT(from({1, 2, 5}, DType::kF64),
              Says(AllOf(HasSubstr("initial state h is f64 [1, 2, 5]"),
                         HasSubstr("must be f64 [2, 2, 5] [layers, samples, hidden]"))));
  EXPECT_THAT(from({2, 2, 5}, DType::kF32), Says(HasSubstr("initial state h is f32 [2, 2, 5]")));
  const Tensor c = Tensor::Zeros({2, 2, 6}, DType::kF64, context_);
  EXPECT_THAT(
      [&] { module->Run(x, {.h = {}, .c = c}); },
      Says(HasSubstr(is_lstm() ? "initial state c is f64 [2, 2, 6]" : "has no cell state")));
  EXPECT_NO_THROW((*module)(x)) << "after a call that failed";

  const auto make = [](int64_t features, int64_t units, const RecurrentOptions& options) {
    return [=] { Make(features, units, options); };
  };
  EXPECT_THAT(make(0, 5, {}), Says(HasSubstr("sizes must be positive, got 0 features and 5")));
  EXPECT_THAT(make(4, 5, {.num_layers = 0}), Says(HasSubstr("num_layers is 0")));
  EXPECT_THAT(make(4, 5, {.dropout = 1}), Says(HasSubstr("dropout must be in [0, 1), got 1")));
}

}  // namespace recurrent_misuse_test
}  // namespace apogee::nn
