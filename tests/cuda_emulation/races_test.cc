// SPDX-License-Identifier: Apache-2.0

// Races of kernels are found, whatever the order of the threads; kernels without one run.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "apogee/core/error.h"
#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tensor/tensor.h"
#include "apogee/tests/cuda_emulation/race_kernels.h"

namespace apogee {
namespace races_test {

void RunKernel(const std::string& kernel) {
  const ContextPtr gpu = ValueOrThrow(CudaContext({.cache = false}));
  const Tensor words = Tensor::Zeros({256}, DType::kI32, gpu);
  RunRaceKernel(*gpu, kernel, words.raw());
  gpu->Synchronize();
}

class RacesTest : public ::testing::Test {
 protected:
  // Streams are threads, so a death test must run in a fresh process.
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    setenv("APOGEE_EMULATED_GPU_RACES", "1", 1);
  }
  void TearDown() override { unsetenv("APOGEE_EMULATED_GPU_RACES"); }
};

TEST_F(RacesTest, KernelsWithoutOne) {
  for (const char* kernel :
       {"barrier", "warp", "part of a warp", "read, then write", "two launches",
        "blocks add atomically", "shared memory of each block", "bytes", "tiles", "vector"}) {
    EXPECT_NO_THROW(RunKernel(kernel)) << kernel;
  }
}

TEST_F(RacesTest, WithinABlock) {
  EXPECT_DEATH(
      RunKernel("no barrier"),
      "race in .*NeighbourKernel<false>.*: thread \\(.*, 0, 0\\) of block \\(0, 0, 0\\) .* "
      "shared memory that thread .*\n.*race_kernels.cu:[0-9]+.*\n.*race_kernels.cu:[0-9]+");
  EXPECT_DEATH(RunKernel("warp without sync"), "race in .*WarpKernel<false>.* shared memory");
  EXPECT_DEATH(RunKernel("two warps"), "race in .*TwoWarpsKernel.* global memory");
  EXPECT_DEATH(RunKernel("outside of the part"), "race in .*PartKernel<8u>");
  EXPECT_DEATH(RunKernel("read and write"),
               "race in .*ReadThenWriteKernel<false>.*writes.*has read");
  EXPECT_DEATH(RunKernel("bytes that overlap"), "race in .*BytesKernel<true>.*writes.*has written");
  EXPECT_DEATH(RunKernel("tiles too early"),
               "race in .*TilesKernel<false>.*shared memory[^\n]*\n[^\n]*\\.cuh?:");
}

TEST_F(RacesTest, BetweenBlocks) {
  EXPECT_DEATH(
      RunKernel("blocks add"),
      "race in .*AddKernel.*: thread \\(0, 0, 0\\) of block \\(2, 0, 0\\) reads global memory "
      "that thread \\(0, 0, 0\\) of block \\(3, 0, 0\\) has written");
  EXPECT_DEATH(RunKernel("atomic and plain"), "race in .*AtomicThenReadKernel.*atomic operation");
}

TEST_F(RacesTest, SharedMemoryThatItsBlockHasNotWritten) {
  EXPECT_DEATH(RunKernel("unwritten, declared"),
               "of block \\(2, 0, 0\\) of .*UnwrittenKernel<false>.* has "
               "not written");
  EXPECT_DEATH(RunKernel("unwritten, dynamic"),
               "of block \\(2, 0, 0\\) of .*UnwrittenKernel<true>.* has "
               "not written");
}

TEST_F(RacesTest, VectorsAtWrongAddresses) {
  EXPECT_DEATH(RunKernel("vector misaligned"), "VectorKernel<2>.*not a multiple of 16");
}

}  // namespace races_test
}  // namespace apogee
