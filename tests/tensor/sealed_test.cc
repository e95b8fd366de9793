// SPDX-License-Identifier: Apache-2.0

// Sealed tensors: shape and graph are there, elements are not, but for Unsealed.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/nn.h"
#include "apogee/tests/support/message_of.h"

namespace apogee {
namespace sealed_test {

using testing::MessageOf;

class SealedTest : public ::testing::Test {
 protected:
  Tensor open_ = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3}, CpuContext());
  Tensor sealed_ = open_.Sealed("a part");
};

TEST_F(SealedTest, IsDescribedAndNotRead) {
  EXPECT_TRUE(sealed_.is_sealed());
  EXPECT_FALSE(open_.is_sealed());
  EXPECT_FALSE(Tensor().is_sealed());
  EXPECT_EQ(sealed_.shape(), open_.shape());
  EXPECT_EQ(sealed_.dtype(), open_.dtype());
  EXPECT_EQ(sealed_.context(), open_.context());
  const Tensor targets = Tensor::FromVector<int64_t>({7, 0}, {2}, CpuContext());
  const std::function<void()> reads[] = {
      [&] { sealed_.ToVector<float>(); }, [&] { sealed_.Slice(0, 0, 1).Slice(1, 0, 1).Item(); },
      [&] { sealed_.data<float>(); }, [&] { sealed_.Clone(); }, [&] { sealed_.To(DType::kF64); },
      [&] { sealed_.Fill(0); }, [&] { open_.CopyFrom(sealed_); }, [&] { sealed_.CopyFrom(open_); },
      [&] { sealed_.Transpose(0, 1).Contiguous(); },
      // What is said of shapes and of targets would be less to the point.
      [&] { sealed_.View({12}); }, [&] { sealed_.Slice(1, 0, 6); },
      [&] {
        ops::Add(Tensor::Zeros({2, 6}, DType::kF32, CpuContext()), sealed_);
      },
      [&] { ops::Scale(sealed_, 2); }, [&] { ops::CrossEntropyForward(sealed_, targets, -100); }};
  for (const auto& read : reads) EXPECT_EQ(MessageOf(read), "a part") << &read - reads;
}

TEST_F(SealedTest, IsGivenBackWithItsViews) {
  EXPECT_EQ(sealed_.Unsealed().ToVector<float>(), open_.ToVector<float>());
  EXPECT_EQ(sealed_.Slice(0, 1, 1).View({3}).Unsealed().ToVector<float>(),
            (std::vector<float>{4, 5, 6}));
  EXPECT_EQ(sealed_.Detach().why_sealed(), "a part");
  EXPECT_EQ(open_.Unsealed().storage(), open_.storage());
}

TEST_F(SealedTest, OwnsItsElementsAsTheTensorDoes) {
  const Tensor given = sealed_.Unsealed();
  open_ = Tensor();
  EXPECT_FALSE(given.is_sole_owner());
  sealed_ = Tensor();
  EXPECT_TRUE(given.is_sole_owner());
}

}  // namespace sealed_test
}  // namespace apogee
