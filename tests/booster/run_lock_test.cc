// SPDX-License-Identifier: Apache-2.0

// A folder belongs to one run at a time, and to nobody when its holder has ended, however it did.
#include "apogee/booster/run_lock.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <tuple>

#include "apogee/booster/booster.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace run_lock_test {

using apogee::testing::RunRanks;
using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(RunLockTest, TheSecondIsToldWhoHasIt) {
  const TempDir dir;
  auto first = ValueOrThrow(RunLock::Take(dir.path()));
  EXPECT_EQ(first->notice(), "");
  const absl::Status second = RunLock::Take(dir.path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(Message(second), AllOf(HasSubstr(dir.path() + " is in use by another run: process " +
                                               std::to_string(getpid()) + " on host "),
                                     HasSubstr(", since 20"), HasSubstr(" UTC; wait until"),
                                     HasSubstr("choose another output folder")));
  first.reset();
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "nothing stays";
  EXPECT_TRUE(RunLock::Take(dir.path()).ok());
}

TEST(RunLockTest, ItEndsWithItsProcess) {
  const TempDir dir;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = RunLock::Take(dir.path());
    const char byte = lock.ok() ? 'y' : 'n';
    (void)!write(ready[1], &byte, 1);
    pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');
  EXPECT_THAT(Message(RunLock::Take(dir.path()).status()),
              HasSubstr("process " + std::to_string(child)));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(std::filesystem::exists(dir / ".lock")) << "left behind";
  EXPECT_TRUE(RunLock::Take(dir.path()).ok());
}

TEST(RunLockTest, WhatIsNoFileIsRefused) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / ".lock").c_str(), 0600), 0);
  EXPECT_THAT(Message(RunLock::Take(dir.path()).status()), HasSubstr("not a regular file"));
  std::filesystem::remove(dir / ".lock");
  dir.Write("precious", "text");
  std::filesystem::create_symlink(dir / "precious", dir / ".lock");
  EXPECT_FALSE(RunLock::Take(dir.path()).ok());
  EXPECT_EQ(testing::ReadFile(dir / "precious"), "text");
}

TEST(RunLockTest, EveryRankHearsOfIt) {
  const TempDir dir;
  const auto held = ValueOrThrow(RunLock::Take(dir.path()));
  std::vector<absl::Status> statuses(2);
  RunRanks(2, [&](comm::World& world) {
    statuses[static_cast<size_t>(world.rank())] =
        RunLock::TakeForAll(dir.path(), world.group()).status();
    const auto other = RunLock::TakeForAll(dir / "new/folder", world.group());
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(*other == nullptr, world.rank() != 0);
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(statuses[0])) << statuses[0];
  EXPECT_EQ(statuses[0], statuses[1]);
}

struct Saver {
  Saver() {
    model.Initialize(CpuContext());
    optimizer = ValueOrThrow(optim::MakeOptimizer("sgd", model.Parameters()));
    std::ignore = booster.boost(model, *optimizer);
  }
  nn::Mlp model{{.sizes = {2, 2}}};
  std::unique_ptr<optim::Optimizer> optimizer;
  SingleRankPlugin plugin;
  Booster booster{plugin};
};

// The second would remove the first one's checkpoints as old ones.
TEST(RunLockTest, TwoBoostersDoNotSaveInOneFolder) {
  const TempDir dir;
  const std::string folder = dir / "checkpoints";
  for (const bool use_async : {false, true}) {
    auto first = std::make_unique<Saver>();
    Saver second;
    const int64_t step = use_async ? 10 : 1;
    ASSERT_EQ(first->booster.save_training_state(folder, {.step = step}, {.use_async = use_async}),
              absl::OkStatus());
    ASSERT_EQ(first->booster.wait_for_saves(), absl::OkStatus());
    const absl::Status status = second.booster.save_training_state(folder, {.step = step + 1});
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_TRUE(second.booster.resume(folder).ok()) << "reading needs no lock";
    ASSERT_EQ(first->booster.save_training_state(folder, {.step = step + 1}), absl::OkStatus());
    first.reset();
    EXPECT_EQ(second.booster.save_training_state(folder, {.step = step + 2}), absl::OkStatus());
  }
}

}  // namespace run_lock_test
}  // namespace apogee
