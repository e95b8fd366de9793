// SPDX-License-Identifier: Apache-2.0

// A build without CUDA says so.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/tensor/cuda/cuda_context.h"

namespace apogee {
namespace cuda_absent_test {

TEST(CudaAbsentTest, SaysHowToBuildWithIt) {
  const absl::Status status = CudaContext().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), ::testing::AllOf(::testing::HasSubstr("this build has no CUDA"),
                                                 ::testing::HasSubstr("-DAPOGEE_WITH_CUDA=ON"),
                                                 ::testing::HasSubstr("use device cpu")));
  EXPECT_EQ(NumCudaDevices(), 0);
}

}  // namespace cuda_absent_test
}  // namespace apogee
