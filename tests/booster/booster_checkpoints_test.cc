// SPDX-License-Identifier: Apache-2.0

// Booster::save_training_state and resume: which checkpoints stay, which one is taken, and that all
// ranks hear the same.
#define XXH_INLINE_ALL
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <tuple>

#include "apogee/booster/booster.h"
#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/optim/momentum/lion.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/files/crash_file_system.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/zero_run.h"

namespace apogee {
namespace booster_checkpoints_test {

using apogee::testing::CrashFileSystem;
using apogee::testing::RunRanks;
using apogee::testing::TempDir;
using apogee::testing::WeightsOf;
using apogee::testing::ZeroRun;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// On two ranks.
void WithRuns(const std::function<void(ZeroRun& run, int rank)>& fn) {
  RunRanks(2, [&](comm::World& world) {
    ZeroRun run(world);
    fn(run, world.rank());
  });
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// Flips a bit in the file of the last rank.
void Damage(const std::string& checkpoint) {
  std::string last;
  for (const std::string& name : NamesIn(checkpoint)) {
    if (name.ends_with(".safetensors")) last = name;
  }
  std::fstream file(checkpoint + "/" + last, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int byte = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 4));
}

class BoosterCheckpointsTest : public ::testing::Test {
 protected:
  void SaveSteps(const std::vector<int64_t>& steps, int64_t keep) {
    WithRuns([&](ZeroRun& run, int) {
      for (const int64_t step : steps) {
        run.Step();
        ASSERT_EQ(run.booster.save_training_state(folder_, {.step = step}, {.keep = keep}),
                  absl::OkStatus());
      }
    });
  }
  // What rank 1 hears; rank 0 must hear the same.
  absl::StatusOr<Resumed> Resume() {
    std::vector<absl::StatusOr<Resumed>> all(2, absl::UnknownError(""));
    WithRuns([&](ZeroRun& run, int rank) {
      all[static_cast<size_t>(rank)] = run.booster.resume(folder_);
    });
    EXPECT_EQ(all[0].status(), all[1].status());
    if (all[0].ok() && all[1].ok()) {
      EXPECT_EQ(all[0]->path, all[1]->path);
      EXPECT_EQ(all[0]->notices, all[1]->notices);
      EXPECT_EQ(all[0]->position.step, all[1]->position.step);
    }
    return all[1];
  }

  TempDir dir_;
  const std::string folder_ = dir_ / "checkpoints";
};

TEST_F(BoosterCheckpointsTest, KeepsTheNewestAndResumesFromIt) {
  std::vector<std::vector<double>> want;
  WithRuns([&](ZeroRun& run, int rank) {
    for (int64_t step = 1; step <= 5; ++step) {
      run.Step();
      ASSERT_EQ(run.booster.save_training_state(
                    folder_, {.step = step, .extra = {{"of", "step " + std::to_string(step)}}},
                    {.keep = 2}),
                absl::OkStatus());
    }
    run.Step();
    if (rank != 0) return;
    for (const auto& p : run.model.Parameters()) want.push_back(p->data().ToVector<double>());
  });
  EXPECT_THAT(NamesIn(folder_), ElementsAre("step-00000004", "step-00000005"));
  WithRuns([&](ZeroRun& run, int) {
    const auto resumed = run.booster.resume(folder_);
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_EQ(resumed->path, folder_ + "/step-00000005");
    EXPECT_EQ(resumed->position.step, 5);
    EXPECT_EQ(resumed->position.extra.at("of"), "step 5");
    EXPECT_THAT(resumed->notices, IsEmpty());
    run.Step();
    std::vector<std::vector<double>> got;
    for (const auto& p : run.model.Parameters()) got.push_back(p->data().ToVector<double>());
    EXPECT_EQ(got, want);
  });
}

TEST_F(BoosterCheckpointsTest, PassesOverWhatIsDamaged) {
  SaveSteps({1, 2, 3, 4}, 4);
  Damage(folder_ + "/step-00000004");
  std::filesystem::remove(folder_ + "/step-00000003/manifest.json");
  const auto resumed = Resume();
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->position.step, 2);
  ASSERT_EQ(resumed->notices.size(), 2u);
  EXPECT_THAT(resumed->notices[0], StartsWith("step-00000004 was passed over: rank "));
  EXPECT_THAT(resumed->notices[0], HasSubstr("their digest differs"));
  EXPECT_THAT(resumed->notices[1], StartsWith("step-00000003 was passed over: "));
  EXPECT_THAT(resumed->notices[1], HasSubstr("manifest.json"));
  EXPECT_EQ(NamesIn(folder_).size(), 4u) << "the folder stays as it is";

  Damage(folder_ + "/step-00000002");
  Damage(folder_ + "/step-00000001");
  const absl::Status none = Resume().status();
  EXPECT_TRUE(absl::IsDataLoss(none)) << none;
  for (int step = 1; step <= 4; ++step) {
    EXPECT_THAT(Message(none), HasSubstr("step-0000000" + std::to_string(step)));
  }
}

TEST_F(BoosterCheckpointsTest, NothingToResumeIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(Resume().status()));
  std::filesystem::create_directories(folder_ + "/.tmp-step-00000001-abc");
  EXPECT_TRUE(absl::IsNotFound(Resume().status())) << "an unfinished save is none";
}

TEST_F(BoosterCheckpointsTest, AnotherModelIsNotDamage) {
  SaveSteps({1, 2}, 2);
  RunRanks(2, [&](comm::World& world) {
    ZeroRun run(world, /*width=*/16);
    const auto before = WeightsOf(run.model);
    const absl::Status status = run.booster.resume(folder_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr("step-00000002 does not fit this run:"));
    EXPECT_EQ(WeightsOf(run.model), before);
  });
}

// It is not damage either: going on from an older one would train its steps anew.
TEST_F(BoosterCheckpointsTest, ANewerFormatIsAnError) {
  SaveSteps({1, 2}, 2);
  const std::string path = folder_ + "/step-00000002/manifest.json";
  const std::string saved = testing::ReadFile(path);
  std::string text = saved;
  const std::string version = "\"apogee_checkpoint\":1";
  const size_t at = text.find(version);
  ASSERT_NE(at, std::string::npos) << text.substr(0, 200);
  text.replace(at, version.size(), "\"apogee_checkpoint\":2");
  std::ofstream(path, std::ios::binary) << text;
  EXPECT_EQ(Resume()->position.step, 1) << "a damaged version is damage";

  text.resize(text.rfind(",\"digest\""));
  char digest[40];
  std::snprintf(digest, sizeof(digest), ",\"digest\":\"%016llx\"}\n",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  text += digest;
  std::ofstream(path, std::ios::binary) << text;
  const absl::Status status = Resume().status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("step-00000002/manifest.json"));
  EXPECT_THAT(Message(status), HasSubstr("version 2"));
  WithRuns([&](ZeroRun& run, int) {
    EXPECT_TRUE(absl::IsAlreadyExists(run.booster.save_training_state(folder_, {.step = 2})));
    EXPECT_EQ(run.booster.save_training_state(folder_, {.step = 3}), absl::OkStatus());
  });
  EXPECT_EQ(Resume()->position.step, 3) << "behind it the run goes on";
  EXPECT_EQ(testing::ReadFile(path), text);
  // Nor when it is not the newest: step 1 would train up to it, and could not be saved.
  Damage(folder_ + "/step-00000003");
  EXPECT_TRUE(absl::IsUnimplemented(Resume().status())) << Resume().status();
}

TEST_F(BoosterCheckpointsTest, AnotherOptimizerIsNotDamage) {
  SaveSteps({1, 2}, 2);
  RunRanks(2, [&](comm::World& world) {
    nn::Mlp model({.sizes = {8, 24, 4}});
    model.Initialize(world.context(), {.seed = 4});
    optim::Lion optimizer(model.Parameters(), {});
    LowLevelZeroPlugin plugin(world.group(), {}, {.stage = 1});
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const auto before = WeightsOf(model);
    const absl::Status status = booster.resume(folder_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(Message(status),
                HasSubstr("step-00000002: the states are of optimizer adamw, this run's is lion"));
    EXPECT_EQ(WeightsOf(model), before);
  });
}

// A run that was resumed behind damaged checkpoints must not lose good ones to them.
TEST_F(BoosterCheckpointsTest, DamagedCheckpointsDoNotCountAmongThoseThatStay) {
  SaveSteps({5, 6, 8, 9}, 4);
  Damage(folder_ + "/step-00000008");
  Damage(folder_ + "/step-00000009");
  std::vector<std::string> notices;
  WithRuns([&](ZeroRun& run, int) {
    const auto resumed = run.booster.resume(folder_);
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    ASSERT_EQ(resumed->position.step, 6);
    const SaveOptions options{.keep = 2,
                              .notice = [&](const std::string& text) { notices.push_back(text); }};
    ASSERT_EQ(run.booster.save_training_state(folder_, {.step = 7}, options), absl::OkStatus());
  });
  EXPECT_THAT(NamesIn(folder_),
              ElementsAre("step-00000006", "step-00000007", "step-00000008", "step-00000009"));
  EXPECT_THAT(notices, IsEmpty());
  WithRuns([&](ZeroRun& run, int) {
    const SaveOptions options{.keep = 2,
                              .notice = [&](const std::string& text) { notices.push_back(text); }};
    ASSERT_EQ(run.booster.save_training_state(folder_, {.step = 8}, options), absl::OkStatus());
  });
  EXPECT_THAT(NamesIn(folder_), ElementsAre("damaged-step-00000008", "step-00000007",
                                            "step-00000008", "step-00000009"));
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_THAT(notices[0], StartsWith("step-00000008 was damaged and is now damaged-step-00000008"));
  EXPECT_EQ(Resume()->position.step, 8);
}

TEST_F(BoosterCheckpointsTest, RefusesMisuseOnEveryRank) {
  SaveSteps({1}, 2);
  WithRuns([&](ZeroRun& run, int) {
    const absl::Status twice = run.booster.save_training_state(folder_, {.step = 1});
    EXPECT_TRUE(absl::IsAlreadyExists(twice)) << twice;
    const absl::Status keep = run.booster.save_training_state(folder_, {.step = 2}, {.keep = 1});
    EXPECT_THAT(Message(keep), HasSubstr("keep must be at least 2, got 1"));
    const absl::Status step = run.booster.save_training_state(folder_, {.step = -1});
    EXPECT_THAT(Message(step), HasSubstr("step must not be negative, got -1"));
    const absl::Status nowhere =
        run.booster.save_training_state(dir_ / "no/such/folder", {.step = 1});
    EXPECT_TRUE(absl::IsNotFound(nowhere)) << nowhere;
    Booster other(run.plugin);
    EXPECT_THROW(other.save_training_state(folder_, {.step = 3}).IgnoreError(), Error);
    EXPECT_THROW(other.resume(folder_).status().IgnoreError(), Error);
  });
}

// Whatever operation fails: either the step is saved, or all ranks have the error and the steps
// before it are as they were.
class BoosterSavesTest : public BoosterCheckpointsTest, public ::testing::WithParamInterface<bool> {
 protected:
  // Saved, whether on this thread or another.
  static absl::Status Save(ZeroRun& run, int64_t step, SaveOptions options) {
    options.use_async = GetParam();
    APOGEE_RETURN_IF_ERROR(run.booster.save_training_state("run", {.step = step}, options));
    return run.booster.wait_for_saves();
  }
};
INSTANTIATE_TEST_SUITE_P(Here, BoosterSavesTest, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(InTheBackground, BoosterSavesTest, ::testing::Values(true));

TEST_P(BoosterSavesTest, AFailureAnywhereLosesNothing) {
  int saved = 0, failed = 0;
  for (size_t index = 0;; ++index) {
    const auto files = std::make_shared<CrashFileSystem>();
    std::vector<absl::Status> statuses(2);
    std::vector<std::string> notices;
    std::mutex mutex;
    bool hit = false;
    WithRuns([&](ZeroRun& run, int rank) {
      const SaveOptions options{.keep = 2,
                                .notice =
                                    [&](const std::string& text) {
                                      const std::lock_guard lock(mutex);
                                      notices.push_back(text);
                                    },
                                .files = files};
      for (const int64_t step : {1, 2}) {
        ASSERT_EQ(Save(run, step, options), absl::OkStatus());
      }
      run.plugin.group()->Barrier();
      const size_t begin = files->num_operations();
      if (rank == 0) files->FailAt(index, absl::ResourceExhaustedError("the disk is full"));
      run.plugin.group()->Barrier();
      statuses[static_cast<size_t>(rank)] = Save(run, 3, options);
      run.plugin.group()->Barrier();
      if (rank == 0) hit = files->num_operations() - begin > index;
    });
    ASSERT_EQ(statuses[0], statuses[1]) << index;
    const auto found = ValueOrThrow(checkpoint::FindCheckpoints(files, "run"));
    EXPECT_THAT(found.rejected, IsEmpty()) << index;
    if (statuses[0].ok()) {
      ++saved;
      EXPECT_EQ(found.valid.back().step, 3) << index;
      EXPECT_GE(found.valid.size(), 2u);
    } else {
      ++failed;
      EXPECT_THAT(Message(statuses[0]), HasSubstr("the disk is full"));
      // The rename may have happened when the sync behind it fails.
      EXPECT_GE(found.valid.size(), 2u);
      EXPECT_EQ(found.valid[0].step, 1);
    }
    const bool failure_told = !statuses[0].ok() || !notices.empty();
    if (!failure_told) {
      EXPECT_FALSE(hit) << "nobody heard of the failure of operation " << index;
      break;
    }
    for (const std::string& notice : notices) {
      EXPECT_THAT(notice, StartsWith("an older checkpoint could not be removed: "));
    }
    ASSERT_LT(index, 200u);
  }
  EXPECT_GT(saved, 3);
  EXPECT_GT(failed, 8);
}

// The newest checkpoint, all of whose digests are right; 0 for none, -1 where one is damaged.
int64_t NewestWhole(const std::shared_ptr<checkpoint::FileSystem>& files) {
  const auto found = checkpoint::FindCheckpoints(files, "run");
  if (!found.ok()) return 0;
  if (!found->rejected.empty()) return -1;
  for (const auto& valid : found->valid) {
    const auto path = checkpoint::JoinPath("run", valid.name);
    const auto reader = checkpoint::CheckpointReader::Open(files, path);
    if (!reader.ok() || !reader->Verify().ok()) return -1;
  }
  return found->valid.empty() ? 0 : found->valid.back().step;
}

// From the folder's making to the removal of the oldest.
TEST_P(BoosterSavesTest, APowerCutAnywhereLosesNothingThatWasSaved) {
  const auto files = std::make_shared<CrashFileSystem>();
  std::vector<size_t> ends = {0};  // of each step's operations
  WithRuns([&](ZeroRun& run, int rank) {
    for (int64_t step = 1; step <= 4; ++step) {
      run.Step();
      ASSERT_EQ(Save(run, step, {.keep = 2, .files = files}), absl::OkStatus());
      if (rank == 0) ends.push_back(files->num_operations());
      run.plugin.group()->Barrier();
    }
  });
  int crashes = 0, bad = 0;
  for (int64_t step = 1; step < static_cast<int64_t>(ends.size()); ++step) {
    const auto at = static_cast<size_t>(step);
    files->ForEachCrash(ends[at - 1], ends[at], [&](const auto& left, bool all_done) {
      const int64_t newest = NewestWhole(left);
      ++crashes;
      bad += newest == step || (!all_done && newest == step - 1) ? 0 : 1;
    });
  }
  EXPECT_GT(crashes, 200);
  EXPECT_EQ(bad, 0) << "of " << crashes;
}

}  // namespace booster_checkpoints_test
}  // namespace apogee
