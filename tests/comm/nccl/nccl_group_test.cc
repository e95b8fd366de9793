// SPDX-License-Identifier: Apache-2.0

// A group over NCCL. Ranks are processes with an emulated GPU each (tests/support/process_main.cc);
// NCCL is process_stub_nccl.cc. collectives_test.cc and failures_test.cc, which test every group,
// run over NCCL, too.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "apogee/comm/cuda/stream_order.h"
#include "apogee/comm/tree_reduce.h"
#include "apogee/core/rng.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::comm {
namespace nccl_group_test {

using ::apogee::testing::LaunchRanks;
using ::apogee::testing::NumProcesses;
using ::apogee::testing::RunRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Sums of these are rounded at every addition: another order has other bits.
Tensor Input(int rank, int64_t n, DType dtype, const ContextPtr& context) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = Philox({7, static_cast<uint32_t>(rank)}, static_cast<uint64_t>(i))[0];
    values.push_back((ToUniform(bits) - 0.5) / 3);
  }
  return Tensor::FromVector<double>(values, {n}, context, dtype);
}

// What every backend computes.
std::vector<double> Reduced(int size, int64_t n, DType dtype, ReduceOp op) {
  std::vector<Tensor> tensors;
  std::vector<const void*> inputs;
  for (int r = 0; r < size; ++r) {
    tensors.push_back(Input(r, n, dtype, CpuContext()));
    inputs.push_back(tensors.back().raw());
  }
  const Tensor result = Tensor::Empty({n}, dtype, CpuContext());
  void* const outputs[] = {result.raw()};
  TreeReduce("reference", dtype, op, inputs, outputs, n);
  return result.ToVector<double>();
}

class BitsTest : public ::testing::TestWithParam<std::tuple<int, int64_t, DType>> {};
// Whole, cut evenly, and with elements behind the shares.
INSTANTIATE_TEST_SUITE_P(
    Sizes, BitsTest,
    ::testing::Combine(::testing::Values(2, 3, 4),
                       ::testing::Values(int64_t{1}, int64_t{1000}, int64_t{24000}, int64_t{30011}),
                       ::testing::Values(DType::kF32, DType::kBF16, DType::kF16, DType::kF64)));

TEST_P(BitsTest, AreThoseOfEveryBackend) {
  const auto [size, n, dtype] = GetParam();
  RunRanks(size, [&, size = size, n = n, dtype = dtype](World& world) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      const std::vector<double> expected = Reduced(size, n, dtype, op);
      const Tensor all = Input(world.rank(), n, dtype, world.context());
      world.group()->AllReduce(all, op);
      EXPECT_EQ(all.ToVector<double>(), expected);
      const Tensor root = Input(world.rank(), n, dtype, world.context());
      const std::vector<double> before = root.ToVector<double>();
      world.group()->Reduce(root, size - 1, op);
      EXPECT_EQ(root.ToVector<double>(), world.rank() == size - 1 ? expected : before);
      const int64_t slice = n / size;
      if (slice == 0) continue;
      const Tensor whole = Input(world.rank(), n, dtype, world.context()).Slice(0, 0, slice * size);
      const Tensor part = Tensor::Empty({slice}, dtype, world.context());
      world.group()->ReduceScatter(part, whole, op);
      const auto begin = expected.begin() + world.rank() * slice;
      EXPECT_EQ(part.ToVector<double>(), std::vector<double>(begin, begin + slice));
    }
    EXPECT_EQ(world.context()->ledger().live_bytes(MemoryCategory::kCommunication), 0);
  });
}

// Some tenths of a second of work on the stream, at the end of which x is `value`.
void FillSlowly(const Tensor& x, double value) {
  const Tensor busy = Tensor::Zeros({1 << 20}, DType::kF64, x.context());
  for (int i = 0; i < 40; ++i) busy.Fill(i);
  x.Fill(value);
}

TEST(NcclGroupTest, TheStreamWaitsAndTheHostDoesNot) {
  RunRanks(3, [](World& world) {
    const Tensor x = Tensor::Zeros({50000}, DType::kF32, world.context());
    FillSlowly(x, world.rank() + 1);
    world.group()->AllReduce(x);
    const cuda::StreamMark after(*world.context());
    EXPECT_FALSE(after.IsReached()) << "the host has waited for the device";
    const Tensor copy = Tensor::Empty({50000}, DType::kF32, world.context());
    copy.CopyFrom(x);
    EXPECT_EQ(copy.ToVector<float>(), std::vector<float>(50000, 6));
  });
}

// What is dropped, and what was handed out anew since, stays what it was.
TEST(NcclGroupTest, MemoryLivesUntilTheDeviceHasComePast) {
  setenv("STUB_NCCL_FAULT", "slow", 1);
  RunRanks(2, [](World& world) {
    const Tensor all = Tensor::Empty({2 * 40000}, DType::kF32, world.context());
    std::shared_ptr<Work> work;
    {
      const Tensor mine = Tensor::Zeros({40000}, DType::kF32, world.context());
      FillSlowly(mine, world.rank() + 1);
      work = world.group()->AllGatherAsync(all, mine);
      world.group()->AllReduceAsync(Tensor::Zeros({40000}, DType::kF32, world.context()));
    }
    while (!work->IsDone()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 0; i < 20; ++i) Tensor::Full({40000}, DType::kF32, 77, world.context());
    work->Wait();
    const std::vector<float> values = all.ToVector<float>();
    EXPECT_EQ(values[39999], 1);
    EXPECT_EQ(values[40000], 2);
  });
  unsetenv("STUB_NCCL_FAULT");
}

// Nothing is ordered between a pair's calls and the group's.
TEST(NcclGroupTest, PairsAndGroupInDifferentOrders) {
  RunRanks(2, [](World& world) {
    const Tensor sum = Tensor::Full({9000}, DType::kF32, 1, world.context());
    const Tensor message = Tensor::Full({9000}, DType::kF32, world.rank(), world.context());
    std::vector<std::shared_ptr<Work>> works;
    const auto reduce = [&] { works.push_back(world.group()->AllReduceAsync(sum)); };
    if (world.rank() == 0) reduce();
    works.push_back(world.rank() == 0 ? world.group()->RecvAsync(message, 1)
                                      : world.group()->SendAsync(message, 0));
    if (world.rank() == 1) reduce();
    for (const auto& work : works) work->Wait();
    EXPECT_EQ(sum.ToVector<float>()[8999], 2);
    EXPECT_EQ(message.ToVector<float>()[8999], 1);
  });
}

// The host's tensors go as ever, between those of the GPU.
TEST(NcclGroupTest, TensorsOfTheHostAndIntegers) {
  RunRanks(2, [](World& world) {
    const Tensor host = Tensor::Full({9}, DType::kF32, 1, HostOf(world.context()));
    const Tensor gpu = Tensor::Full({9}, DType::kI64, world.rank(), world.context());
    world.group()->Broadcast(gpu, 1);
    world.group()->AllReduce(host);
    world.group()->Barrier();
    EXPECT_EQ(gpu.ToVector<int64_t>(), std::vector<int64_t>(9, 1));
    EXPECT_EQ(host.ToVector<float>(), std::vector<float>(9, 2));
  });
  const absl::Status integers = LaunchRanks({.num_ranks = 2}, [](World& world) {
    world.group()->AllReduce(Tensor::Zeros({4}, DType::kI32, world.context()));
  });
  EXPECT_THAT(Message(integers), HasSubstr("all_reduce: sums of integers are not supported"));
  const absl::Status kinds = LaunchRanks({.num_ranks = 2}, [](World& world) {
    const ContextPtr& context = world.rank() == 0 ? world.context() : HostOf(world.context());
    world.group()->AllReduce(Tensor::Zeros({4}, DType::kF32, context));
  });
  EXPECT_THAT(Message(kinds), AllOf(HasSubstr("all_reduce(sum, 4 x f32) #0 of group [0 1]"),
                                    HasSubstr("on a GPU"), HasSubstr("on the host")));
}

}  // namespace nccl_group_test
}  // namespace apogee::comm
