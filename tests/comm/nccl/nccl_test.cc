// SPDX-License-Identifier: Apache-2.0

// Collectives through the loaded NCCL, which is a stub here: each against a computation of its own.
// And what is refused, by the loader and by a communicator.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "apogee/comm/nccl/backoff.h"
#include "apogee/tests/comm/nccl/nccl_ranks.h"

namespace apogee::comm::nccl {
namespace nccl_test {

using ::apogee::testing::Event;
using ::apogee::testing::LoadElement;
using ::apogee::testing::RunStubRanks;
using ::apogee::testing::StoreElement;
using ::apogee::testing::StubNccl;
using ::apogee::testing::StubOptions;
using ::apogee::testing::StubRank;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Small whole numbers: exact, also summed, in each dtype.
double Value(int rank, int64_t i) { return static_cast<double>((rank * 7 + i * 3) % 11 + 1); }

struct Buffer {
  Buffer(DType dtype, int64_t count, const std::function<double(int64_t)>& value)
      : dtype(dtype), count(count), bytes(static_cast<size_t>(count * DTypeSize(dtype)) + 1) {
    for (int64_t i = 0; i < count; ++i) StoreElement(dtype, bytes.data(), i, value(i));
  }
  double operator[](int64_t i) const { return LoadElement(dtype, bytes.data(), i); }
  void* data() { return bytes.data(); }

  DType dtype;
  int64_t count;
  std::vector<char> bytes;
};

class NcclCollectivesTest : public ::testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  // Runs `call` with input Value(rank, i), or in place, and compares the output.
  void Check(Call call, int64_t outputs, const std::function<double(int rank, int64_t i)>& expected,
             bool in_place = false) {
    const auto [size, dtype] = GetParam();
    call.dtype = dtype;
    const int64_t count = call.count;
    RunStubRanks(stub_, size, {}, [&, d = dtype](StubRank& rank) {
      Buffer input(d, count, [&](int64_t i) { return Value(rank.rank(), i); });
      Buffer output(d, outputs, [](int64_t) { return 99; });
      if (in_place) output = input;
      Call mine = call;
      mine.input = in_place ? output.data() : input.data();
      mine.output = output.data();
      rank.Submit(mine)->Wait();
      for (int64_t i = 0; i < outputs; ++i) {
        ASSERT_EQ(output[i], expected(rank.rank(), i))
            << CollectiveName(call.kind) << " rank " << rank.rank() << " of " << rank.size()
            << " element " << i << " " << DTypeName(d);
      }
    });
    EXPECT_EQ(stub_.num_alive(), 0);
  }
  int size() const { return std::get<0>(GetParam()); }
  double Sum(int64_t i) const {
    double sum = 0;
    for (int r = 0; r < size(); ++r) sum += Value(r, i);
    return sum;
  }
  double Max(int64_t i) const {
    double max = 0;
    for (int r = 0; r < size(); ++r) max = std::max(max, Value(r, i));
    return max;
  }
  StubNccl stub_;
};

TEST_P(NcclCollectivesTest, AllReduce) {
  const auto sum = [&](int, int64_t i) { return Sum(i); };
  for (const int64_t n : {0, 1, 37})
    Check({.kind = CollectiveKind::kAllReduce, .count = n}, n, sum);
  Check({.kind = CollectiveKind::kAllReduce, .count = 5}, 5, sum, true);
  Check({.kind = CollectiveKind::kAllReduce, .op = ReduceOp::kMax, .count = 9}, 9,
        [&](int, int64_t i) { return Max(i); });
}

TEST_P(NcclCollectivesTest, ReduceScatter) {
  Check({.kind = CollectiveKind::kReduceScatter, .count = 6 * size()}, 6,
        [&](int rank, int64_t i) { return Sum(6 * rank + i); });
  Check({.kind = CollectiveKind::kReduceScatter, .op = ReduceOp::kMax, .count = 2 * size()}, 2,
        [&](int rank, int64_t i) { return Max(2 * rank + i); });
}

TEST_P(NcclCollectivesTest, AllGather) {
  Check({.kind = CollectiveKind::kAllGather, .count = 6}, 6 * size(),
        [&](int, int64_t i) { return Value(static_cast<int>(i / 6), i % 6); });
}

TEST_P(NcclCollectivesTest, BroadcastAndReduce) {
  for (int root = 0; root < size(); ++root) {
    Check(
        {.kind = CollectiveKind::kBroadcast, .root = root, .count = 7}, 7,
        [&](int, int64_t i) { return Value(root, i); }, true);
    Check({.kind = CollectiveKind::kReduce, .root = root, .count = 7}, 7,
          [&](int rank, int64_t i) { return rank == root ? Sum(i) : 99; });
    Check({.kind = CollectiveKind::kReduce, .op = ReduceOp::kMax, .root = root, .count = 3}, 3,
          [&](int rank, int64_t i) { return rank == root ? Max(i) : 99; });
  }
}

TEST_P(NcclCollectivesTest, AllToAll) {
  Check({.kind = CollectiveKind::kAllToAll, .count = 4 * size()}, 4 * size(),
        [&](int rank, int64_t i) { return Value(static_cast<int>(i / 4), 4 * rank + i % 4); });
}

// Around a ring, and many operations at once, in order on one stream.
TEST_P(NcclCollectivesTest, SendAndRecv) {
  if (size() == 1) return;
  const DType dtype = std::get<1>(GetParam());
  RunStubRanks(stub_, size(), {}, [&](StubRank& rank) {
    const int n = rank.size(), left = (rank.rank() + n - 1) % n, right = (rank.rank() + 1) % n;
    std::vector<Buffer> in, out;
    std::vector<OperationPtr> operations;
    for (int k = 0; k < 20; ++k) {
      in.emplace_back(dtype, k + 1, [&](int64_t i) { return Value(rank.rank(), i + k); });
      out.emplace_back(dtype, k + 1, [](int64_t) { return 99; });
    }
    for (size_t k = 0; k < in.size(); ++k) {
      Call call{.root = right, .dtype = dtype, .count = in[k].count};
      call.kind = CollectiveKind::kSend;
      call.input = in[k].data();
      operations.push_back(rank.Submit(call));
      call.kind = CollectiveKind::kRecv;
      call.root = left;
      call.output = out[k].data();
      operations.push_back(rank.Submit(call));
    }
    EXPECT_EQ(operations[2]->name(), "send(to " + std::to_string(right) + ", 2 x " +
                                         DTypeName(dtype) + ") #1 of group " +
                                         (n == 2 ? "[10 11]" : "[10 11 12]"));
    operations.back()->WaitQueued();
    for (const OperationPtr& operation : operations) operation->Wait();
    EXPECT_TRUE(operations.front()->IsDone());
    for (int k = 0; k < 20; ++k) {
      for (int64_t i = 0; i <= k; ++i) {
        ASSERT_EQ(out[static_cast<size_t>(k)][i], Value(left, i + k)) << k << " " << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, NcclCollectivesTest,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(DType::kF32, DType::kBF16,
                                                              DType::kF16, DType::kF64, DType::kI64,
                                                              DType::kI32, DType::kU8, DType::kI8)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  DTypeName(std::get<1>(info.param));
                         });

// The device is past it only when the event is: NCCL's own return says nothing.
TEST(NcclTest, CompletionIsTheCallers) {
  StubNccl stub;
  RunStubRanks(stub, 1, {}, [](StubRank& rank) {
    const auto open = std::make_shared<std::atomic<bool>>(false);
    float x = 3;
    const OperationPtr operation = rank.communicator().Submit(
        {.count = 1, .input = &x, .output = &x, .stream = &rank.stream(), .is_complete = [open] {
           return open->load();
         }});
    operation->WaitQueued();
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_FALSE(operation->IsDone());
    *open = true;
    operation->Wait();
  });
}

// A call that NCCL has queued at once must not cost a sleep: an all-reduce of a bucket takes less
// time than the shortest one.
TEST(NcclTest, SleepsOnlyForSlowCalls) {
  StubNccl stub;
  const auto sleeps = [&](int num_calls) {
    int64_t count = 0;
    RunStubRanks(stub, 1, {}, [&](StubRank& rank) {
      const int64_t before = rank.communicator().num_sleeps();
      float x = 3;
      for (int i = 0; i < num_calls; ++i) {
        rank.Submit({.count = 1, .input = &x, .output = &x})->Wait();
      }
      count = rank.communicator().num_sleeps() - before;
    });
    return count;
  };
  EXPECT_EQ(sleeps(20), 0);
  stub.SetFaults("slow");  // in progress for 110 checks
  EXPECT_EQ(sleeps(3), 3 * (110 + 1 - Backoff::kSpins));
}

TEST(NcclTest, BackoffGrows) {
  Backoff backoff;
  for (int i = 0; i < Backoff::kSpins; ++i) ASSERT_EQ(backoff.Next().count(), 0);
  std::vector<int64_t> pauses;
  for (int i = 0; i < 8; ++i) pauses.push_back(backoff.Next().count());
  EXPECT_EQ(pauses, (std::vector<int64_t>{20, 40, 80, 160, 320, 640, 1000, 1000}));
}

TEST(NcclTest, RefusesCallsThatCannotBe) {
  StubNccl stub;
  RunStubRanks(stub, 2, {}, [](StubRank& rank) {
    float x[4] = {};
    const auto error_of = [&](Call call) -> std::string {
      if (call.input == nullptr) call.input = x;
      if (call.output == nullptr) call.output = x;
      try {
        rank.Submit(call);
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    using enum CollectiveKind;
    EXPECT_THAT(error_of({.kind = kBarrier}), HasSubstr("no barrier; all_reduce one element"));
    EXPECT_THAT(error_of({.count = -1}), HasSubstr("count -1 is negative"));
    EXPECT_THAT(error_of({.kind = kReduceScatter, .count = 3}),
                HasSubstr("3 elements cannot be shared by 2 members"));
    EXPECT_THAT(error_of({.kind = kAllToAll, .count = 1}), HasSubstr("cannot be shared"));
    EXPECT_THAT(error_of({.kind = kBroadcast, .root = 2, .count = 1}),
                HasSubstr("rank 2 is not in group [10 11]"));
    EXPECT_THAT(error_of({.kind = kReduce, .root = -1, .count = 1}),
                HasSubstr("rank -1 is not in"));
    EXPECT_THAT(error_of({.kind = kSend, .root = rank.rank(), .count = 1}),
                HasSubstr("is this member itself; copy instead"));
    EXPECT_THROW(rank.communicator().Submit({.count = 1, .input = x, .output = x}), Error);
    EXPECT_THROW(rank.Submit({.count = 1, .input = x}), Error);
    EXPECT_THROW(rank.Submit({.kind = kSend, .root = 1 - rank.rank(), .count = 1}), Error);
    // Nothing of it has come to NCCL, nor counts.
    EXPECT_EQ(rank.stream().queued, 0);
    const OperationPtr operation = rank.Submit({.count = 4, .input = x, .output = x});
    EXPECT_EQ(operation->name(), "all_reduce(sum, 4 x f32) #0 of group [10 11]");
    operation->Wait();
  });
}

TEST(NcclTest, RefusesOptionsThatCannotBe) {
  StubNccl stub;
  const CommunicatorOptions good = StubOptions(stub, {}, 0, 2, {});
  const auto error_of = [](const CommunicatorOptions& options) -> std::string {
    try {
      Communicator communicator(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CommunicatorOptions bad = good;
  bad.rank = 2;
  EXPECT_THAT(error_of(bad), HasSubstr("group [10 11]: rank 2 is not one of its 2 members"));
  bad = good;
  bad.api = nullptr;
  EXPECT_THAT(error_of(bad), HasSubstr("api is null"));
  bad = good;
  bad.record = nullptr;
  EXPECT_THAT(error_of(bad), HasSubstr("record is null"));
  bad = good;
  bad.timeout = std::chrono::milliseconds(0);
  EXPECT_THAT(error_of(bad), HasSubstr("a timeout of 0 ms"));
}

TEST(NcclTest, LoadSaysWhatIsWrong) {
  const auto error_of = [](const std::string& path) {
    const auto api = NcclApi::Load(path);
    return api.ok() ? absl::OkStatus() : api.status();
  };
  EXPECT_EQ(error_of("/nowhere/libnccl.so.2").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(error_of("/nowhere/libnccl.so.2")),
              AllOf(HasSubstr("/nowhere/libnccl.so.2"), HasSubstr("LD_LIBRARY_PATH")));
  EXPECT_THAT(Message(error_of("libm.so.6")), HasSubstr("is not NCCL: it has no ncclGetVersion"));
  EXPECT_EQ(error_of(APOGEE_STUB_NCCL_OLD).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(error_of(APOGEE_STUB_NCCL_OLD)),
              AllOf(HasSubstr("is NCCL 2.8.3"), HasSubstr("NCCL 2.14.0 or later is needed")));
  EXPECT_THAT(Message(error_of(APOGEE_STUB_NCCL_PARTIAL)),
              HasSubstr("says that it is NCCL 2.21.5 but lacks ncclCommAbort"));
  const auto api = NcclApi::Load(APOGEE_STUB_NCCL);
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_EQ((*api)->version(), 22105);
  EXPECT_EQ((*api)->path(), APOGEE_STUB_NCCL);
}

// With NCCL on the machine it is found, whichever; without, the error says what to do.
TEST(NcclTest, LoadByDefault) {
  const auto api = NcclApi::Load();
  if (api.ok()) {
    EXPECT_GE((*api)->version(), NcclApi::kMinVersion);
    EXPECT_THAT((*api)->Describe(kRemoteError), HasSubstr("ncclRemoteError: "));
  } else {
    EXPECT_THAT(Message(api.status()), HasSubstr("libnccl.so.2"));
  }
}

}  // namespace nccl_test
}  // namespace apogee::comm::nccl
