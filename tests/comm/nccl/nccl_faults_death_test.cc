// SPDX-License-Identifier: Apache-2.0

// An NCCL that hangs and keeps the thread that called it: the process ends with its exit code, and
// the flight record is written before.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/comm/failure/give_up.h"
#include "apogee/tests/comm/nccl/nccl_faults.h"

namespace apogee::comm::nccl {
namespace nccl_faults_death_test {

using ::apogee::testing::RunStubRanks;
using ::apogee::testing::StubRank;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using Json = nlohmann::json;

using NcclFaultsDeathTest = NcclFaultsTest;
// Starting the child is in the time, and may take a while.
constexpr double kEnd = 0.5 + 1 + 3;

TEST_F(NcclFaultsDeathTest, AbortThatNeverReturns) {
  const auto start = Clock::now();
  EXPECT_EXIT(AllReduceWith("enqueue_hangs,abort_never_returns"), ExitedWithCode(kExitCode),
              "rank 10 ends its process with exit code 70: all_reduce.sum, 4 x f32. #0 of group "
              ".10.: not complete .*ncclCommAbort has not returned for 0.5");
  EXPECT_LT(Seconds(start), kEnd);
  const Json record = Record();
  EXPECT_EQ(record["calls"][0]["state"], "failed");
  EXPECT_THAT(std::string(record["calls"][0]["error"]), HasSubstr(kCall));
  EXPECT_LT(record["calls"][0]["ended_ms"], 1500);
}

// Nothing hangs but the abort.
TEST_F(NcclFaultsDeathTest, AbortThatNeverReturnsAfterATimeout) {
  const auto start = Clock::now();
  EXPECT_EXIT(AllReduceWith("never_completes,abort_never_returns"), ExitedWithCode(kExitCode),
              "NCCL has queued it.*ncclCommAbort has not returned for 0.5");
  EXPECT_LT(Seconds(start), kEnd);
}

// Also where the abort comes back.
TEST_F(NcclFaultsDeathTest, EnqueueThatNeverReturns) {
  const auto start = Clock::now();
  EXPECT_EXIT(AllReduceWith("enqueue_never_returns"), ExitedWithCode(kExitCode),
              "exit code 70: .*the thread that calls NCCL has been in ncclAllReduce of all_reduce");
  EXPECT_LT(Seconds(start), kEnd);
}

TEST_F(NcclFaultsDeathTest, AbortThatReturnsTooLate) {
  EXPECT_EXIT(AllReduceWith("enqueue_hangs,abort_late"), ExitedWithCode(kExitCode),
              "ncclCommAbort has not returned");
}

TEST_F(NcclFaultsDeathTest, InitThatNeverReturns) {
  const auto start = Clock::now();
  EXPECT_EXIT(
      {
        stub_.SetFaults("init_never_returns");
        RunStubRanks(stub_, 1, Options(), [](StubRank&) {});
      },
      ExitedWithCode(kExitCode), "group .10.: not ready .*in ncclCommInitRankConfig for");
  EXPECT_LT(Seconds(start), kEnd);
}

TEST_F(NcclFaultsDeathTest, DestroyThatNeverReturns) {
  const auto start = Clock::now();
  EXPECT_EXIT(AllReduceWith("destroy_never_returns"), ExitedWithCode(kExitCode),
              "the thread that calls NCCL has been in ncclCommDestroy for");
  EXPECT_LT(Seconds(start), kEnd);
}

}  // namespace nccl_faults_death_test
}  // namespace apogee::comm::nccl
