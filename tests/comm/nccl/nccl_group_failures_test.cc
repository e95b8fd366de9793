// SPDX-License-Identifier: Apache-2.0

// Failures over NCCL only: a device that never finishes a collective, and refused launches.
// Ranks are processes (tests/support/process_main.cc); NCCL is process_stub_nccl.cc.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>

#include "apogee/tests/support/environment.h"
#include "apogee/tests/support/launch_ranks.h"

namespace apogee::comm {
namespace nccl_group_failures_test {

using ::apogee::testing::Environment;
using ::apogee::testing::LaunchRanks;
using ::apogee::testing::NumProcesses;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr const char* kFault = "STUB_NCCL_FAULT";

Tensor Buffer(World& world) { return Tensor::Zeros({40000}, DType::kF32, world.context()); }

void TrainsAgain() {
  const absl::Status status = LaunchRanks({.num_ranks = NumProcesses()}, [](World& world) {
    const Tensor x = Tensor::Full({40000}, DType::kF32, 1, world.context());
    world.group()->AllReduce(x);
    EXPECT_EQ(x.ToVector<float>()[39999], static_cast<float>(world.size()));
  });
  EXPECT_TRUE(status.ok()) << Message(status);
}

// The call and its Wait return in time; the launch does not succeed all the same.
TEST(NcclFailuresTest, ADeviceThatDoesNotComePastTheLastCollective) {
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status =
      LaunchRanks({.num_ranks = NumProcesses(), .timeout_seconds = 0.7}, [](World& world) {
        const Environment fault(kFault, world.rank() == 1 ? "never_completes" : "none");
        const Tensor x = Buffer(world);
        world.group()->AllReduce(x);
        EXPECT_THROW(x.ToVector<float>(); world.group()->AllReduce(x), CommError);
        world.group()->AllReduce(x);
      });
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("all_reduce(sum, 40000 x f32) #"), HasSubstr("of group [0 1"),
                    HasSubstr("not complete within 0.70 s: NCCL has queued it, and the device has "
                              "not completed it")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
  TrainsAgain();
}

TEST(NcclFailuresTest, WhatNobodyHasWaitedForFailsTheLaunch) {
  const absl::Status status =
      LaunchRanks({.num_ranks = NumProcesses(), .timeout_seconds = 0.7}, [](World& world) {
        const Environment fault(kFault, world.rank() == 0 ? "never_completes" : "none");
        world.group()->BroadcastAsync(Buffer(world), 0)->Wait();
        world.group()->Barrier();
      });
  EXPECT_THAT(Message(status), AllOf(HasSubstr("broadcast(root 0, 40000 x f32) #0 of group"),
                                     HasSubstr("not complete within 0.70 s")));
  TrainsAgain();
}

// Nothing runs, and all ranks say the same.
void ExpectRefused(const LaunchOptions& options, absl::StatusCode code, const std::string& why) {
  bool ran = false;
  const absl::Status status = LaunchRanks(options, [&](World&) { ran = true; });
  EXPECT_EQ(status.code(), code);
  EXPECT_THAT(Message(status), HasSubstr(why));
  EXPECT_FALSE(ran);
}

TEST(NcclFailuresTest, TwoRanksOnOneGpu) {
  const Environment shared("APOGEE_EMULATED_GPU_BUS", "0000:3B:00.0");
  ExpectRefused({}, absl::StatusCode::kFailedPrecondition,
                "comm nccl: rank 0 (cuda:0) and rank 1 (cuda:0) are on one GPU, 0000:3B:00.0 of ");
  const absl::Status staged = LaunchRanks({.comm = Backend::kMpi}, [](World& world) {
    const Tensor x = Tensor::Full({5}, DType::kF32, 1, world.context());
    world.group()->AllReduce(x);
    EXPECT_EQ(x.ToVector<float>()[4], static_cast<float>(world.size()));
  });
  EXPECT_TRUE(staged.ok()) << Message(staged);
}

TEST(NcclFailuresTest, SeveralVersions) {
  const int rank = ValueOrThrow(StartedProcesses()).rank;
  const Environment fault(kFault, rank == 1 ? "version" : "none");
  ExpectRefused({}, absl::StatusCode::kFailedPrecondition, "rank 1 has NCCL 2.28.9, rank 0 2.21.5");
}

TEST(NcclFailuresTest, ChoicesThatCannotBe) {
  ExpectRefused({.comm = Backend::kLocal}, absl::StatusCode::kInvalidArgument,
                "comm local is for ranks");
  const absl::Status on_cpu = launch({.device = "cpu", .comm = Backend::kNccl}, [](World&) {});
  EXPECT_THAT(Message(on_cpu), HasSubstr("but device is cpu"));
}

}  // namespace nccl_group_failures_test
}  // namespace apogee::comm
