// SPDX-License-Identifier: Apache-2.0

// On the real file system: a process that ends before, in the middle of, or behind any change that
// a save or a removal makes loses no checkpoint, and the next save works and clears up.
// scripts/kill_every_syscall.sh does the same from outside, with SIGKILL.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>

#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/tests/support/files/killing_file_system.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/runs/small_run.h"

namespace apogee {
namespace kill_anywhere_test {

using apogee::testing::KillingFileSystem;
using apogee::testing::OnSmallRun;
using apogee::testing::SmallRun;
using apogee::testing::TempDir;
using checkpoint::RealFileSystem;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using When = KillingFileSystem::When;

// Exit code of a child that saves `step` beside what it finds, and keeps two; 0: acknowledged. The
// parent never runs a model: threads that it had would be missing in the next child.
int SaveInChild(const std::string& folder, int64_t step, int ranks,
                const std::shared_ptr<checkpoint::FileSystem>& files) {
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status saved = OnSmallRun(ranks, [&](SmallRun& run) {
      const absl::Status resumed = run.booster.resume(folder).status();
      if (!resumed.ok() && !absl::IsNotFound(resumed)) return resumed;
      run.Step();
      return run.booster.save_training_state(folder, {.step = step}, {.keep = 2, .files = files});
    });
    if (!saved.ok()) std::fprintf(stderr, "%s\n", Message(saved).c_str());
    _exit(saved.ok() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Steps of the valid checkpoints; -1 for one that is named so and is not valid, or does not verify.
std::vector<int64_t> Steps(const std::string& folder) {
  const auto found = checkpoint::FindCheckpoints(RealFileSystem(), folder);
  if (absl::IsNotFound(found.status())) return {};
  std::vector<int64_t> steps(found->rejected.size(), -1);
  for (const auto& valid : found->valid) {
    const auto reader = checkpoint::CheckpointReader::Open(
        RealFileSystem(), checkpoint::JoinPath(folder, valid.name));
    steps.push_back(reader.ok() && reader->Verify().ok() ? valid.step : -1);
  }
  return steps;
}

class KillAnywhereTest : public ::testing::TestWithParam<int> {};

TEST_P(KillAnywhereTest, OfTheFirstSave) {
  int kills = 0;
  for (const When when : {When::kBefore, When::kMiddle, When::kAfter}) {
    for (int change = 1;; ++change) {
      const TempDir dir;
      const std::string folder = dir / "checkpoints";
      const int code =
          SaveInChild(folder, 1, GetParam(), std::make_shared<KillingFileSystem>(when, change));
      if (code == 0) break;
      ASSERT_EQ(code, KillingFileSystem::kKilled);
      ++kills;
      EXPECT_THAT(Steps(folder), AnyOf(IsEmpty(), ElementsAre(1))) << change;
      ASSERT_EQ(SaveInChild(folder, 2, GetParam(), RealFileSystem()), 0);
      EXPECT_THAT(Steps(folder), AnyOf(ElementsAre(2), ElementsAre(1, 2))) << change;
    }
  }
  std::printf("%d ends of the process\n", kills);
  EXPECT_GT(kills, 50);
}

TEST_P(KillAnywhereTest, OfASaveAndARemoval) {
  const TempDir dir;
  const std::string before = dir / "before", folder = dir / "checkpoints";
  for (const int64_t step : {1, 2}) {
    ASSERT_EQ(SaveInChild(before, step, GetParam(), RealFileSystem()), 0);
  }
  int kills = 0, of_saves = 0, of_removals = 0;
  for (const When when : {When::kBefore, When::kMiddle, When::kAfter}) {
    for (int change = 1;; ++change) {
      std::filesystem::remove_all(folder);
      std::filesystem::copy(before, folder, std::filesystem::copy_options::recursive);
      const int code =
          SaveInChild(folder, 3, GetParam(), std::make_shared<KillingFileSystem>(when, change));
      const std::vector<int64_t> steps = Steps(folder);
      if (code == 0) {
        EXPECT_THAT(steps, ElementsAre(2, 3));
        break;
      }
      ASSERT_EQ(code, KillingFileSystem::kKilled);
      ++kills;
      // The oldest goes only when three are there.
      EXPECT_THAT(steps, AnyOf(ElementsAre(1, 2), ElementsAre(1, 2, 3), ElementsAre(2, 3)))
          << change;
      (steps.back() == 3 ? of_removals : of_saves) += 1;
      const std::vector<int64_t> want = {steps.back(), 4};
      ASSERT_EQ(SaveInChild(folder, 4, GetParam(), RealFileSystem()), 0);
      EXPECT_EQ(Steps(folder), want) << change;
      EXPECT_THAT(*RealFileSystem()->List(folder),
                  ElementsAre(checkpoint::CheckpointName(want[0]), checkpoint::CheckpointName(4)))
          << "leftovers behind a kill at change " << change;
    }
  }
  std::printf("%d ends of the process: %d before the new name, %d behind it\n", kills, of_saves,
              of_removals);
  EXPECT_GT(kills, 70);
  EXPECT_GT(of_saves, 40);
  EXPECT_GT(of_removals, 15);
}

INSTANTIATE_TEST_SUITE_P(Ranks, KillAnywhereTest, ::testing::Values(1, 2));

}  // namespace kill_anywhere_test
}  // namespace apogee
