// SPDX-License-Identifier: Apache-2.0

// CudaGraphCall: every call computes with its own numbers, in order with other work; memory is what
// it is without a graph; what fails within a call has the effect of its earlier work.
#include "apogee/tensor/cuda/cuda_graph_call.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/core/error.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tensor/cuda/cuda_graph.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tests/support/message_of.h"

namespace apogee {
namespace cuda_graph_call_test {

using ::apogee::testing::MessageOf;
using ::testing::HasSubstr;

class CudaGraphCallTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (NumCudaDevices() == 0) GTEST_SKIP() << "no GPU: " << CudaContext().status();
    gpu_ = ValueOrThrow(CudaContext({.cache = GetParam()}));
  }
  Tensor Values(const std::vector<float>& values) const {
    return Tensor::FromVector<float>(values, {static_cast<int64_t>(values.size())}, gpu_);
  }
  ContextPtr gpu_;
};
INSTANTIATE_TEST_SUITE_P(WithAndWithoutACache, CudaGraphCallTest, ::testing::Bool());

TEST_P(CudaGraphCallTest, EveryCallHasItsOwnNumbers) {
  CudaGraphCall call(gpu_);
  const Tensor total = Values({1, 2, 3});
  std::vector<float> expected = {1, 2, 3};
  for (int i = 0; i < 5; ++i) {
    const auto f = static_cast<float>(i);
    call.Run([&] {
      EXPECT_TRUE(CudaGraphCall::IsUnderWay(*gpu_));
      // A number in a kernel's arguments, an upload that changes, memory that is freed.
      const Tensor more = ops::Scale(Values({f, 1, 2}), i + 0.5);
      ops::Accumulate(total, more);
      if (i == 3) ops::Accumulate(total, more);  // another kind of work
    });
    EXPECT_FALSE(CudaGraphCall::IsUnderWay(*gpu_));
    const float times = i == 3 ? 2 : 1;
    expected[0] += times * f * (f + 0.5f);
    expected[1] += times * (f + 0.5f);
    expected[2] += times * 2 * (f + 0.5f);
    // Work in between, and other users of the memory that the call has freed.
    ops::Accumulate(total, Values({10, 20, 30}));
    for (size_t k = 0; k < 3; ++k) expected[k] += 10 * static_cast<float>(k + 1);
  }
  EXPECT_EQ(total.ToVector<float>(), expected);
  EXPECT_EQ(call.num_made(), 3);
  EXPECT_EQ(call.num_updated(), 2);
}

TEST_P(CudaGraphCallTest, KeepsNoMemory) {
  const Tensor x = Values(std::vector<float>(5000, 1));
  gpu_->Synchronize();
  const int64_t live = gpu_->ledger().live_total_bytes();
  Tensor result;
  {
    CudaGraphCall call(gpu_);
    for (int i = 0; i < 3; ++i) call.Run([&] { result = ops::Scale(ops::Add(x, x), i); });
    EXPECT_EQ(gpu_->ledger().live_total_bytes(), live + result.bytes());
    gpu_->allocator().ReleaseCache();
    EXPECT_EQ(gpu_->ledger().live_total_bytes(), live + result.bytes());
  }
  EXPECT_EQ(result.ToVector<float>()[4999], 4);
  result = Tensor();
  EXPECT_EQ(gpu_->ledger().live_total_bytes(), live);
}

TEST_P(CudaGraphCallTest, FreesUploadsOfEarlierCalls) {
  CudaGraphCall call(gpu_);
  const Tensor total = Values({0});
  for (int i = 1; i <= 200; ++i) {
    call.Run([&] { ops::Accumulate(total, Values({static_cast<float>(i)})); });
    EXPECT_LE(call.num_old_uploads(), 65);
  }
  gpu_->Synchronize();
  call.Run([&] { ops::Accumulate(total, Values({-1})); });
  EXPECT_EQ(call.num_old_uploads(), 1);  // of the call before
  EXPECT_EQ(total.ToVector<float>()[0], 20099);
}

TEST_P(CudaGraphCallTest, WhatFailsWithinACallHasDoneItsEarlierWork) {
  CudaGraphCall call(gpu_);
  const Tensor x = Values({1, 2});
  for (int i = 1; i < 4; ++i) {
    EXPECT_THAT(MessageOf([&] {
                  call.Run([&] {
                    ops::Accumulate(x, Values({1, 1}));
                    x.ToVector<float>();
                  });
                }),
                HasSubstr("ToVector: reads values on the host while a CUDA graph is captured"));
    const auto f = static_cast<float>(i);
    EXPECT_EQ(x.ToVector<float>(), (std::vector<float>{1 + f, 2 + f}));
  }
  EXPECT_THAT(MessageOf([&] { call.Run([&] { call.Run([] {}); }); }),
              HasSubstr("CudaGraphCall: a graph is being captured"));
  EXPECT_THAT(
      MessageOf([&] { CudaGraph::Capture(gpu_, {}, [&](const auto&) { call.Run([] {}); }); }),
      HasSubstr("CudaGraphCall: a graph is being captured"));
  EXPECT_THAT(MessageOf([] { CudaGraphCall on_cpu(CpuContext()); }), HasSubstr("got cpu"));
  call.Run([] {});  // no work at all
  EXPECT_EQ(x.ToVector<float>(), (std::vector<float>{4, 5}));
}

}  // namespace cuda_graph_call_test
}  // namespace apogee
