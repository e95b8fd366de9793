// SPDX-License-Identifier: Apache-2.0

// The tree of sums over memory of a GPU: the bits of the processor's.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apogee/comm/device_backend.h"
#include "apogee/comm/tree_reduce.h"
#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tests/support/runs/rough_sums.h"

namespace apogee::comm::cuda {
namespace cuda_tree_reduce_test {

using ::apogee::testing::RoughAddend;

constexpr int64_t kBehind = 9;

class CudaTreeReduceTest : public ::testing::TestWithParam<std::tuple<DType, ReduceOp>> {
 protected:
  void SetUp() override {
    if (NumCudaDevices() == 0) GTEST_SKIP() << "no GPU";
    context_ = ValueOrThrow(CudaContext());
  }
  DType dtype() const { return std::get<0>(GetParam()); }
  ReduceOp op() const { return std::get<1>(GetParam()); }

  // `ranks` addends of n elements; what each of `num_outputs` addresses holds afterwards, among
  // them, where `in_place`, the inputs'. `shift`: elements between 16 bytes and the addresses.
  void ExpectBitsOfTheProcessor(size_t ranks, int64_t n, size_t num_outputs, bool in_place,
                                int64_t shift) {
    std::vector<std::string> addends;
    std::vector<const void*> host_inputs;
    for (size_t r = 0; r < ranks; ++r) addends.push_back(RoughAddend(r, ranks, n, dtype()));
    for (const std::string& addend : addends) host_inputs.push_back(addend.data());
    std::string want(addends[0].size(), '\0');
    void* const host_output = want.data();
    TreeReduce("test", dtype(), op(), host_inputs, {&host_output, 1}, n);

    const auto bytes = static_cast<int64_t>(want.size());
    const int64_t first = shift * DTypeSize(dtype());
    std::vector<Tensor> memory;
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    const auto allocate = [&] {
      memory.push_back(Tensor::Full({shift + n + kBehind}, dtype(), 7, context_));
      return static_cast<char*>(memory.back().raw()) + first;
    };
    for (const std::string& addend : addends) {
      void* const input = allocate();
      context_->CopyFromHost(input, addend.data(), bytes);
      inputs.push_back(input);
      if (in_place && outputs.size() < num_outputs) outputs.push_back(input);
    }
    while (outputs.size() < num_outputs) outputs.push_back(allocate());
    cuda::TreeReduceOn(*context_, "test", dtype(), op(), inputs, outputs, n);
    for (const Tensor& each : memory) {  // nothing is written before or behind the elements
      EXPECT_EQ(each.Slice(0, 0, shift).ToVector<double>(),
                std::vector<double>(static_cast<size_t>(shift), 7));
      EXPECT_EQ(each.Slice(0, shift + n, kBehind).ToVector<double>(),
                std::vector<double>(static_cast<size_t>(kBehind), 7));
    }
    for (const void* output : outputs) {
      std::string result(want.size(), '\0');
      context_->CopyToHost(result.data(), output, bytes);
      ASSERT_TRUE(result == want) << ranks << " ranks, " << n << " elements, in place " << in_place;
    }
  }

  ContextPtr context_;
};

TEST_P(CudaTreeReduceTest, OfAnyNumberOfRanks) {
  for (size_t ranks = 1; ranks <= 40; ++ranks) ExpectBitsOfTheProcessor(ranks, 101, 1, false, 0);
  for (const size_t ranks : {63, 64, 65, 130, 200}) {
    ExpectBitsOfTheProcessor(ranks, 101, 1, false, 0);
  }
}

TEST_P(CudaTreeReduceTest, OfAnyNumberOfElementsAnywhere) {
  for (const int64_t n : {0, 1, 2, 3, 4, 5, 8, 2051}) {
    for (const int64_t shift : {0, 1, 2}) ExpectBitsOfTheProcessor(3, n, 2, false, shift);
  }
}

TEST_P(CudaTreeReduceTest, IntoTheInputs) {
  for (const size_t ranks : {1, 2, 5, 64, 70}) {
    ExpectBitsOfTheProcessor(ranks, 1003, ranks, true, 0);
    ExpectBitsOfTheProcessor(ranks, 103, ranks, true, 1);
  }
  ExpectBitsOfTheProcessor(3, 103, 70, true, 0);
}

INSTANTIATE_TEST_SUITE_P(All, CudaTreeReduceTest,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kBF16,
                                                              DType::kF16, DType::kF64),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kMax)));

TEST(CudaTreeReduceErrors, IntegersAreNotOffered) {
  if (NumCudaDevices() == 0) GTEST_SKIP() << "no GPU";
  const ContextPtr context = ValueOrThrow(CudaContext());
  try {
    cuda::TreeReduceOn(*context, "all_reduce", DType::kI64, ReduceOp::kSum, {}, {}, 0);
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("all_reduce: sums of integers"));
  }
}

}  // namespace cuda_tree_reduce_test
}  // namespace apogee::comm::cuda
