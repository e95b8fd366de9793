// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/records/peak_share.h"

#include <gtest/gtest.h>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::driver {
namespace peak_share_test {

TEST(PeakShareTest, CountsTheProductsOfItsContext) {
  const ContextPtr context = CpuContext();
  const Tensor a = Tensor::Zeros({3, 5}, DType::kF32, context);
  const Tensor b = Tensor::Zeros({5, 7}, DType::kF32, context);
  {
    PeakShare share(context, DType::kF32);
    EXPECT_EQ(share.TakeFlops(), 0);  // the peak's products are not the run's
    ops::MatMul(a, b);
    ops::MatMul(a, b);
    EXPECT_EQ(share.TakeFlops(), 2 * 2 * 3 * 5 * 7);
    EXPECT_EQ(share.TakeFlops(), 0);
    EXPECT_GT(share.peak_flops(), 1e8);
    EXPECT_LT(share.peak_flops(), 1e13);
  }
  EXPECT_EQ(context->kernel_listener(), nullptr);
}

TEST(PeakShareTest, LeavesTheLedgerAlone) {
  const ContextPtr context = CpuContext();
  const PeakShare share(context, DType::kBF16);
  EXPECT_EQ(context->ledger().peak_reserved_bytes(), 0);
}

}  // namespace peak_share_test
}  // namespace apogee::driver
