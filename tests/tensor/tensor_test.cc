// SPDX-License-Identifier: Apache-2.0

// Tensor: views, wrapped memory, accounts.
#include "apogee/tensor/tensor.h"

#include <gtest/gtest.h>

#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/test_context.h"

namespace apogee {
namespace tensor_test {

TEST(TensorTest, ViewsShareAndStridesAddUp) {
  const ContextPtr context = TestContext();
  const Tensor x =
      Tensor::FromVector<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {3, 4}, context);
  EXPECT_EQ(x.Transpose(0, 1).ToVector<float>(),
            (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_EQ(x.Slice(1, 1, 2).ToVector<float>(), (std::vector<float>{1, 2, 5, 6, 9, 10}));
  EXPECT_EQ(x.Slice(0, 1, 2).Slice(1, 3, 1).ToVector<float>(), (std::vector<float>{7, 11}));
  x.Slice(0, 2, 1).Fill(-1);
  EXPECT_EQ(x.ToVector<float>()[8], -1);
  EXPECT_FALSE(x.is_sole_owner() && x.View({12}).is_sole_owner());
  EXPECT_THROW(x.Transpose(0, 1).View({12}), Error);
  EXPECT_THROW(x.View({5}), Error);
  EXPECT_THROW(x.Slice(1, 3, 2), Error);
  EXPECT_THROW(x.data<double>(), Error);
  EXPECT_THROW(x.Item(), Error);
}

TEST(TensorTest, WrappedMemoryIsTheCallersAndIsNotCounted) {
  const ContextPtr context = TestContext();
  Buffer memory(DType::kF32, {1, 2, 3, 4});
  {
    const Tensor x = Tensor::Wrap(memory.data(), {2, 2}, DType::kF32, context);
    x.storage()->set_category(MemoryCategory::kGradient);
    x.Slice(0, 1, 1).Fill(9);
    EXPECT_EQ(context->ledger().live_total_bytes(), 0);
    EXPECT_EQ(context->ledger().live_bytes(MemoryCategory::kGradient), 0);
  }
  EXPECT_EQ(memory.values(), (std::vector<double>{1, 2, 9, 9}));
  EXPECT_THROW(Tensor::Wrap(nullptr, {1}, DType::kF32, context), Error);
}

TEST(TensorTest, AccountsFollowTheCategory) {
  const ContextPtr context = TestContext();
  const Tensor x = Tensor::Zeros({100}, DType::kF64, context);
  EXPECT_EQ(context->ledger().live_bytes(MemoryCategory::kActivation), 800);
  x.storage()->set_category(MemoryCategory::kGradient);
  EXPECT_EQ(context->ledger().live_bytes(MemoryCategory::kActivation), 0);
  EXPECT_EQ(context->ledger().live_bytes(MemoryCategory::kGradient), 800);
}

}  // namespace tensor_test
}  // namespace apogee
