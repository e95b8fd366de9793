// SPDX-License-Identifier: Apache-2.0

// A GPU with less shared memory than an H100: attention that does not fit says so.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>

#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tensor/ops/nn.h"
#include "apogee/tests/support/environment.h"
#include "apogee/tests/support/message_of.h"

namespace apogee {
namespace small_gpu_test {

using ::apogee::testing::Environment;
using ::apogee::testing::MessageOf;
using ::testing::HasSubstr;

// The error of the backward of attention, "" if there is none.
std::string BackwardError(DType dtype, int64_t head_dim) {
  const ContextPtr gpu = ValueOrThrow(CudaContext());
  const auto zeros = [&] { return Tensor::Zeros({1, 3, 1, head_dim}, dtype, gpu); };
  const Tensor lse = Tensor::Zeros({1, 1, 3}, ComputeDType(dtype), gpu);
  const std::string error = MessageOf([&] {
    ops::AttentionBackward({zeros(), zeros(), zeros()}, {zeros(), lse}, zeros(), {},
                           {zeros(), zeros(), zeros()});
  });
  gpu->Synchronize();
  return error;
}

TEST(SmallGpuTest, AttentionNamesTheSharedMemoryThatItNeeds) {
  const std::string none = MessageOf([] {});
  // 227 KiB are enough for the largest head dim in f64.
  EXPECT_EQ(BackwardError(DType::kF64, 256), none);
  const Environment small("APOGEE_EMULATED_GPU", "small");
  EXPECT_THAT(BackwardError(DType::kF64, 256),
              HasSubstr("attention_backward: its blocks need 206336 bytes of shared memory, and "
                        "cuda:0 has 101376; take a smaller dtype or head dim, or another GPU"));
  EXPECT_EQ(BackwardError(DType::kF64, 64), none);
  EXPECT_EQ(BackwardError(DType::kBF16, 128), none);
}

}  // namespace small_gpu_test
}  // namespace apogee
