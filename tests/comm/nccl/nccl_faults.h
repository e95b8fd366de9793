// SPDX-License-Identifier: Apache-2.0

// Ranks whose NCCL is the stub with a fault, and checks that they leave nothing behind.
//
//   EXPECT_THAT(AllReduceWith("never_completes"), HasSubstr(kCall));   // in a TEST_F of it
#ifndef APOGEE_TESTS_COMM_NCCL_NCCL_FAULTS_H_
#define APOGEE_TESTS_COMM_NCCL_NCCL_FAULTS_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "apogee/tests/comm/nccl/nccl_ranks.h"
#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::comm::nccl {

inline constexpr std::chrono::milliseconds kTimeout(500);
inline constexpr const char* kCall = "all_reduce(sum, 4 x f32) #0 of group [10]: ";

inline double Seconds(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

template <typename Fn>
std::string ErrorOf(const Fn& function) {
  try {
    function();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

class NcclFaultsTest : public ::testing::Test {
 protected:
  NcclFaultsTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    // A death test's child runs the test again from its start, and must write to the same folder.
    const char* const inherited = std::getenv("APOGEE_NCCL_TEST_RECORDS");
    if (inherited != nullptr) {
      records_ = inherited;
      return;
    }
    dir_.emplace();
    records_ = dir_->path();
    setenv("APOGEE_NCCL_TEST_RECORDS", records_.c_str(), 1);
  }
  ~NcclFaultsTest() override {
    if (dir_) unsetenv("APOGEE_NCCL_TEST_RECORDS");
  }

  CommunicatorOptions Options() {
    CommunicatorOptions options{.timeout = kTimeout};
    options.tell_peers = [told = told_](const std::string& why) {
      std::lock_guard lock(told->mutex);
      told->why = why;
    };
    return options;
  }
  std::string told() {
    std::lock_guard lock(told_->mutex);
    return told_->why;
  }
  nlohmann::json Record() {
    return nlohmann::json::parse(apogee::testing::ReadFile(records_ + "/rank10.json"));
  }

  // One rank alone whose all-reduce has the fault.
  std::string AllReduceWith(const std::string& faults,
                            std::chrono::milliseconds before_the_end = {}) {
    std::string error;
    apogee::testing::RunStubRanks(
        stub_, 1, Options(),
        [&](apogee::testing::StubRank& rank) {
          stub_.SetFaults(faults);
          error = ErrorOf([&] { AllReduce(rank)->Wait(); });
          std::this_thread::sleep_for(before_the_end);
        },
        records_);
    return error;
  }
  OperationPtr AllReduce(apogee::testing::StubRank& rank) {
    return rank.Submit({.count = 4, .input = buffer_, .output = buffer_});
  }
  // The fault has no further effect: the process can make another communicator.
  void ExpectThatTheProcessGoesOn() {
    EXPECT_EQ(stub_.num_alive(), 0);
    stub_.SetFaults("");
    EXPECT_EQ(AllReduceWith(""), "");
  }

  apogee::testing::StubNccl stub_;
  std::string records_;

 private:
  struct Told {
    std::mutex mutex;
    std::string why;
  };
  std::optional<apogee::testing::TempDir> dir_;
  const std::shared_ptr<Told> told_ = std::make_shared<Told>();
  float buffer_[4] = {};
};

}  // namespace apogee::comm::nccl

#endif  // APOGEE_TESTS_COMM_NCCL_NCCL_FAULTS_H_
