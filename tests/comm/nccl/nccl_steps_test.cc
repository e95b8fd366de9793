// SPDX-License-Identifier: Apache-2.0

// The steps of collectives on GPUs (comm/nccl/steps.h), carried out by threads on host memory: the
// stub NCCL moves, TreeReduce reduces. And what they need of a communicator: pieces of any size,
// functions in front of and behind an operation, an end without waiting.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>

#include "apogee/comm/nccl/steps.h"
#include "apogee/comm/tree_reduce.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/comm/nccl/nccl_ranks.h"

namespace apogee::comm::nccl {
namespace nccl_steps_test {

using ::apogee::testing::RunStubRanks;
using ::apogee::testing::StubNccl;
using ::apogee::testing::StubRank;
using ::testing::HasSubstr;

Tensor Input(int rank, int64_t n, DType dtype) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back((rank + 1) / (3.0 + static_cast<double>(i % 11)));
  return Tensor::FromVector<double>(values, {n}, CpuContext(), dtype);
}

void CarryOut(StubRank& rank, const CollectiveCall& call) {
  const int64_t bytes = MakeSteps(call, nullptr, rank.rank(), rank.size()).scratch_bytes;
  const Tensor scratch = Tensor::Empty({bytes}, DType::kU8, CpuContext());
  const Steps steps = MakeSteps(call, scratch.raw(), rank.rank(), rank.size());
  for (const Steps::Copy& copy : steps.copies) {
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
  }
  for (const Step& step : steps.steps) {
    rank.Submit(step.call)->Wait();
    for (const Reduction& r : step.reductions) {
      void* const outputs[] = {r.output};
      TreeReduce("step", call.input.dtype(), call.op, r.inputs, outputs, r.count);
    }
  }
}

class StepsTest : public ::testing::TestWithParam<std::tuple<int, int64_t, DType>> {};
// Whole, cut evenly, and with elements behind the shares.
INSTANTIATE_TEST_SUITE_P(
    Sizes, StepsTest,
    ::testing::Combine(::testing::Values(2, 3, 5),
                       ::testing::Values(int64_t{1}, int64_t{1001}, int64_t{24000}, int64_t{30011}),
                       ::testing::Values(DType::kF32, DType::kBF16, DType::kF64)));

TEST_P(StepsTest, ReduceWithTheBitsOfEveryBackend) {
  const auto [size, n, dtype] = GetParam();
  StubNccl stub;
  RunStubRanks(stub, size, {}, [n = n, dtype = dtype](StubRank& rank) {
    using enum CollectiveKind;
    std::vector<Tensor> inputs;
    std::vector<const void*> addresses;
    for (int r = 0; r < rank.size(); ++r) {
      inputs.push_back(Input(r, n, dtype));
      addresses.push_back(inputs.back().raw());
    }
    const Tensor sum = Tensor::Empty({n}, dtype, CpuContext());
    void* const outputs[] = {sum.raw()};
    TreeReduce("reference", dtype, ReduceOp::kSum, addresses, outputs, n);
    const std::vector<double> expected = sum.ToVector<double>();

    const Tensor all = Input(rank.rank(), n, dtype), one = Input(rank.rank(), n, dtype);
    CarryOut(rank, {.kind = kAllReduce, .input = all, .output = all});
    EXPECT_EQ(all.ToVector<double>(), expected);
    const int root = rank.size() - 1;
    CarryOut(rank, {.kind = kReduce, .root = root, .input = one, .output = one});
    EXPECT_EQ(one.ToVector<double>(),
              rank.rank() == root ? expected : Input(rank.rank(), n, dtype).ToVector<double>());
    const int64_t slice = n / rank.size();
    const Tensor whole = Input(rank.rank(), slice * rank.size(), dtype);
    const Tensor part = Tensor::Empty({slice}, dtype, CpuContext());
    if (slice > 0) CarryOut(rank, {.kind = kReduceScatter, .input = whole, .output = part});
    const auto begin = expected.begin() + rank.rank() * slice;
    EXPECT_EQ(part.ToVector<double>(), std::vector<double>(begin, begin + slice));
  });
}

TEST(NcclStepsTest, AllToAll) {
  StubNccl stub;
  RunStubRanks(stub, 3, {}, [](StubRank& rank) {
    const Tensor input = Input(rank.rank(), 21, DType::kF32);
    const Tensor output = Tensor::Empty({21}, DType::kF32, CpuContext());
    CarryOut(rank, {.kind = CollectiveKind::kAllToAll, .input = input, .output = output});
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(output.Slice(0, r * 7, 7).ToVector<float>(),
                Input(r, 21, DType::kF32).Slice(0, rank.rank() * 7, 7).ToVector<float>());
    }
  });
}

TEST(NcclStepsTest, BeforeAndAfter) {
  StubNccl stub;
  RunStubRanks(stub, 2, {}, [](StubRank& rank) {
    float data[] = {1, 2};
    std::vector<int64_t> queued;  // on the stream, when they were called
    Call call{.kind = CollectiveKind::kBroadcast, .count = 2, .output = data};
    call.before = call.after = [&] { queued.push_back(rank.stream().queued); };
    rank.Submit(call)->Wait();
    EXPECT_EQ(queued, (std::vector<int64_t>{0, 1}));
    call.after = [] { Throw("no kernel"); };
    try {
      rank.Submit(call)->Wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("broadcast(root 0, 2 x f32) #1 of group [10 11]: "));
      EXPECT_THAT(error.what(), HasSubstr("no kernel"));
    }
  });
}

// The members do not come; the caller knows why, and nobody waits.
TEST(NcclStepsTest, AbortedWhileItsMembersAreMissing) {
  StubNccl stub;
  const auto id = ValueOrThrow(stub.api()->NewUniqueId(std::chrono::seconds(10)));
  CommunicatorOptions options{.wait = false};
  const auto start = Clock::now();
  {
    StubRank alone(testing::StubOptions(stub, id, 0, 2, options));
    float data[] = {1, 2};
    const OperationPtr operation =
        alone.Submit({.kind = CollectiveKind::kBroadcast, .count = 2, .output = data});
    EXPECT_FALSE(operation->IsQueued());
    alone.communicator().Abort("rank 11 has left");
    EXPECT_THROW(operation->WaitQueued(), CommError);
    EXPECT_TRUE(operation->IsQueued());
    try {
      alone.Submit({.kind = CollectiveKind::kBroadcast, .count = 2, .output = data});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 11 has left"));
    }
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

}  // namespace nccl_steps_test
}  // namespace apogee::comm::nccl
