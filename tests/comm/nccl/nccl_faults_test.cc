// SPDX-License-Identifier: Apache-2.0

// An NCCL that hangs, wherever it is called: the error names the call and comes in time, the peers
// are told, the flight record is written, and the process goes on. (nccl_faults_death_test: where a
// thread cannot be had back.)
#include "apogee/tests/comm/nccl/nccl_faults.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <set>

namespace apogee::comm::nccl {
namespace nccl_faults_test {

using ::apogee::testing::RunStubRanks;
using ::apogee::testing::StubOptions;
using ::apogee::testing::StubRank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

TEST_F(NcclFaultsTest, EnqueueThatHangs) {
  const auto start = Clock::now();
  const std::string error = AllReduceWith("enqueue_hangs");
  EXPECT_LT(Seconds(start), 1.5);
  EXPECT_GT(Seconds(start), 0.5);
  EXPECT_THAT(error, AllOf(HasSubstr(kCall), HasSubstr("not complete within 0.50 s"),
                           HasSubstr("NCCL has not queued it"),
                           HasSubstr("has been in ncclAllReduce of all_reduce")));
  EXPECT_EQ(told(), error);
  const Json record = Record();
  EXPECT_EQ(record["calls"][0]["state"], "failed");
  EXPECT_EQ(record["calls"][0]["error"], error);
  EXPECT_EQ(record["channels"][0]["group"], "[10]");
  ExpectThatTheProcessGoesOn();
}

TEST_F(NcclFaultsTest, CompletionThatNeverComes) {
  const auto start = Clock::now();
  const std::string error = AllReduceWith("never_completes");
  EXPECT_LT(Seconds(start), 1.5);
  EXPECT_THAT(error, AllOf(HasSubstr(kCall), HasSubstr("NCCL has queued it"),
                           Not(HasSubstr("the thread that calls NCCL"))));
  ExpectThatTheProcessGoesOn();
}

TEST_F(NcclFaultsTest, CompletionThatThrows) {
  const auto start = Clock::now();
  RunStubRanks(stub_, 1, {}, [](StubRank& rank) {
    float x = 0;
    const auto operation = rank.communicator().Submit(
        {.count = 1,
         .input = &x,
         .output = &x,
         .stream = &rank.stream(),
         .is_complete = []() -> bool { throw Error("an illegal memory access was encountered"); }});
    EXPECT_THAT(ErrorOf([&] { operation->WaitQueued(); }),
                HasSubstr("#0 of group [10]: an illegal memory access was encountered"));
  });
  EXPECT_LT(Seconds(start), 30);  // of a timeout of 60
}

// Not the first one's error, which goes on well.
TEST_F(NcclFaultsTest, ErrorOfALaterCall) {
  RunStubRanks(stub_, 1, {}, [](StubRank& rank) {
    float x = 0;
    Call call{.count = 1, .input = &x, .output = &x, .stream = &rank.stream()};
    call.is_complete = [] { return false; };
    const OperationPtr first = rank.communicator().Submit(call);
    call.is_complete = [calls = std::make_shared<int>(0)] {
      if (++*calls > 3) throw Error("no such event");
      return false;
    };
    const OperationPtr second = rank.communicator().Submit(call);
    const std::string name = "all_reduce(sum, 1 x f32) #1 of group [10]";
    EXPECT_EQ(ErrorOf([&] { second->Wait(); }), name + ": no such event");
    EXPECT_THAT(ErrorOf([&] { first->Wait(); }),
                HasSubstr("#0 of group [10]: its communicator has failed: " + name));
  });
  ExpectThatTheProcessGoesOn();
}

TEST_F(NcclFaultsTest, AMemberThatDoesNotCome) {
  const auto start = Clock::now();
  RunStubRanks(
      stub_, 2, Options(),
      [&](StubRank& rank) {
        if (rank.rank() == 1) return;
        const OperationPtr first = AllReduce(rank), second = AllReduce(rank);
        const std::string name = "all_reduce(sum, 4 x f32) #0 of group [10 11]";
        EXPECT_THAT(ErrorOf([&] { first->Wait(); }), HasSubstr(name + ": not complete"));
        EXPECT_THAT(ErrorOf([&] { second->Wait(); }),
                    AllOf(HasSubstr("#1 of group [10 11]: its communicator has failed: " + name)));
        EXPECT_THAT(ErrorOf([&] { AllReduce(rank); }),
                    HasSubstr("#2 of group [10 11]: its communicator has failed before: " + name));
      },
      records_);
  EXPECT_LT(Seconds(start), 2.5);
  ExpectThatTheProcessGoesOn();
}

TEST_F(NcclFaultsTest, InitThatStaysInProgress) {
  stub_.SetFaults("init_in_progress");
  const auto start = Clock::now();
  const UniqueId id = ValueOrThrow(stub_.api()->NewUniqueId(std::chrono::seconds(5)));
  const std::string error =
      ErrorOf([&] { Communicator communicator(StubOptions(stub_, id, 0, 2, Options())); });
  EXPECT_LT(Seconds(start), 1.5);
  EXPECT_THAT(error, AllOf(HasSubstr("NCCL communicator of group [10 11]: not ready within 0.50 s"),
                           HasSubstr("a member has not made its communicator")));
  ExpectThatTheProcessGoesOn();
}

TEST_F(NcclFaultsTest, AsyncError) {
  const auto start = Clock::now();
  RunStubRanks(stub_, 1, {}, [&](StubRank& rank) {
    stub_.SetFaults("never_completes,async_error");
    EXPECT_THAT(ErrorOf([&] { AllReduce(rank)->Wait(); }),
                AllOf(HasSubstr(kCall), HasSubstr("ncclRemoteError: a remote process exited"),
                      HasSubstr("(the stub's last words)")));
  });
  EXPECT_LT(Seconds(start), 30);  // of a timeout of 60
  ExpectThatTheProcessGoesOn();
}

TEST_F(NcclFaultsTest, AsyncErrorWhileIdle) {
  for (const char* fault : {"async_error", "poll_hangs"}) {
    RunStubRanks(stub_, 1, Options(), [&](StubRank& rank) {
      stub_.SetFaults(fault);
      const auto start = Clock::now();
      while (told().empty() && Seconds(start) < 1.5) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      EXPECT_THAT(told(), HasSubstr("NCCL communicator of group [10]: "));
      EXPECT_THAT(told(), HasSubstr("ncclCommGetAsyncError"));
      EXPECT_THAT(ErrorOf([&] { AllReduce(rank); }), HasSubstr(told()));
    });
    ExpectThatTheProcessGoesOn();
    Options().tell_peers("");
  }
}

TEST_F(NcclFaultsTest, ErrorOfTheCall) {
  const auto start = Clock::now();
  EXPECT_THAT(AllReduceWith("enqueue_fails"),
              AllOf(HasSubstr(kCall), HasSubstr("ncclAllReduce reports ncclInvalidArgument")));
  EXPECT_LT(Seconds(start), 1.5);
  ExpectThatTheProcessGoesOn();
}

TEST_F(NcclFaultsTest, FinalizeThatHangs) {
  const auto start = Clock::now();
  EXPECT_EQ(AllReduceWith("finalize_hangs"), "");
  EXPECT_LT(Seconds(start), 1.5);
  EXPECT_THAT(told(), HasSubstr("group [10]: not ended within 0.50 s"));
  ExpectThatTheProcessGoesOn();
}

// As a device is selected per thread.
TEST_F(NcclFaultsTest, ThreadsThatCallNcclArePrepared) {
  std::mutex mutex;
  std::set<std::thread::id> prepared;
  CommunicatorOptions options{.timeout = kTimeout};
  options.prepare_thread = [&] {
    std::lock_guard lock(mutex);
    prepared.insert(std::this_thread::get_id());
  };
  RunStubRanks(stub_, 1, options, [&](StubRank& rank) {
    stub_.SetFaults("never_completes");
    EXPECT_THAT(ErrorOf([&] { AllReduce(rank)->Wait(); }), HasSubstr(kCall));
  });
  EXPECT_EQ(prepared.size(), 2u);  // the abort's is another
  options.prepare_thread = [] { throw Error("no such device"); };
  const auto id = ValueOrThrow(stub_.api()->NewUniqueId(std::chrono::seconds(5)));
  EXPECT_EQ(ErrorOf([&] { Communicator communicator(StubOptions(stub_, id, 0, 1, options)); }),
            "NCCL communicator of group [10]: no such device");
}

// An abort that takes 0.9 s has returned when the communicator is destroyed.
TEST_F(NcclFaultsTest, AbortThatReturnsLate) {
  const auto start = Clock::now();
  EXPECT_THAT(AllReduceWith("enqueue_hangs,abort_late", std::chrono::milliseconds(1300)),
              HasSubstr(kCall));
  EXPECT_LT(Seconds(start), 3);
  ExpectThatTheProcessGoesOn();
}

TEST_F(NcclFaultsTest, PeersThatCannotBeTold) {
  for (const bool throws : {true, false}) {
    const auto start = Clock::now();
    CommunicatorOptions options{.timeout = kTimeout};
    options.tell_peers = [throws](const std::string&) {
      if (throws) throw Error("no peers");
      std::this_thread::sleep_for(std::chrono::seconds(5));
    };
    RunStubRanks(stub_, 1, options, [&](StubRank& rank) {
      stub_.SetFaults("never_completes");
      EXPECT_THAT(ErrorOf([&] { AllReduce(rank)->Wait(); }), HasSubstr(kCall));
    });
    EXPECT_LT(Seconds(start), 1.5);
    ExpectThatTheProcessGoesOn();
  }
}

TEST_F(NcclFaultsTest, UniqueIdThatHangs) {
  stub_.SetFaults("id_hangs");
  const auto start = Clock::now();
  const auto id = stub_.api()->NewUniqueId(std::chrono::milliseconds(200));
  EXPECT_LT(Seconds(start), 1.2);
  EXPECT_EQ(id.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(id.status()), HasSubstr("ncclGetUniqueId has not returned within 200 ms"));
}

}  // namespace nccl_faults_test
}  // namespace apogee::comm::nccl
