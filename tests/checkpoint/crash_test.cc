// SPDX-License-Identifier: Apache-2.0

// A power cut, or a failure, at any operation of a save or a removal loses no checkpoint.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/crash_file_system.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::checkpoint {
namespace crash_test {

using apogee::testing::CrashFileSystem;
using apogee::testing::RunRanks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kNumel = 30;
const char* const kFolder = "run";

// Saves step `step`, whose numbers are step + i, on `ranks` ranks; the same status on all.
absl::Status Save(const std::shared_ptr<CrashFileSystem>& files, int64_t step, int ranks = 2) {
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  RunRanks(ranks, [&](comm::World& world) {
    const int64_t part = kNumel / ranks, begin = world.rank() * part;
    std::vector<float> values;
    for (int64_t i = begin; i < begin + part; ++i) values.push_back(static_cast<float>(step + i));
    const TensorPart mine{"w", Tensor::FromVector<float>(values, {part}, CpuContext()),
                          Layout(Shape{kNumel}, {.segments = {{begin, part}}})};
    statuses[static_cast<size_t>(world.rank())] =
        SaveCheckpoint({files, JoinPath(kFolder, CheckpointName(step))},
                       {{{"step", std::to_string(step)}}, {mine}}, world.group());
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  return statuses[0];
}

// Steps whose checkpoints are whole; a valid one with other numbers than were saved counts as -1,
// and so does one that only looks like a checkpoint.
std::vector<int64_t> WholeSteps(const std::shared_ptr<FileSystem>& files) {
  const auto found = FindCheckpoints(files, kFolder);
  if (!found.ok()) return {-1};
  std::vector<int64_t> steps;
  for (const FoundCheckpoint& checkpoint : found->valid) {
    const auto reader = CheckpointReader::Open(files, JoinPath(kFolder, checkpoint.name));
    const Tensor to = Tensor::Zeros({kNumel}, DType::kF32, CpuContext());
    bool whole = reader.ok() && reader->Read("w", Layout(Shape{kNumel}), to).ok();
    for (int64_t i = 0; whole && i < kNumel; ++i) {
      whole = to.data<float>()[i] == static_cast<float>(checkpoint.step + i);
    }
    steps.push_back(whole ? checkpoint.step : -1);
  }
  if (!found->rejected.empty()) steps.push_back(-1);
  return steps;
}

std::shared_ptr<CrashFileSystem> WithSteps(std::vector<int64_t> steps) {
  auto files = std::make_shared<CrashFileSystem>();
  OkOrThrow(files->MakeDir(kFolder));
  OkOrThrow(files->SyncDir("."));
  for (const int64_t step : steps) OkOrThrow(Save(files, step));
  return files;
}

// How many crashes during the save of step 2, beside step 1, leave something wrong.
int BadCrashesOfSave(const CrashFileSystem& files, size_t from) {
  int bad = 0;
  files.ForEachCrash(from, files.num_operations(), [&](const auto& left, bool all_done) {
    const std::vector<int64_t> steps = WholeSteps(left);
    const bool both = steps == std::vector<int64_t>{1, 2};
    bad += both || (!all_done && steps == std::vector<int64_t>{1}) ? 0 : 1;
  });
  return bad;
}

TEST(CrashTest, APowerCutDuringASaveLosesNothing) {
  const auto files = WithSteps({1});
  const size_t from = files->num_operations();
  ASSERT_EQ(Save(files, 2), absl::OkStatus());
  EXPECT_EQ(BadCrashesOfSave(*files, from), 0);
}

TEST(CrashTest, EverySyncOfASaveIsNeeded) {
  const auto files = WithSteps({1});
  const size_t from = files->num_operations();
  ASSERT_EQ(Save(files, 2), absl::OkStatus());
  const std::vector<size_t> syncs = files->SyncsSince(from);
  EXPECT_EQ(syncs.size(), 5u);  // two ranks' files, the manifest, the folder, the one above
  for (const size_t sync : syncs) {
    files->ForgetSync(sync);
    EXPECT_GT(BadCrashesOfSave(*files, from), 0) << "operation " << sync;
  }
}

int BadCrashesOfRemoval(const CrashFileSystem& files, size_t from) {
  int bad = 0;
  files.ForEachCrash(from, files.num_operations(), [&](const auto& left, bool all_done) {
    const std::vector<int64_t> steps = WholeSteps(left);
    const bool kept = steps == std::vector<int64_t>{2, 3};
    bad += kept || (!all_done && steps == std::vector<int64_t>{1, 2, 3}) ? 0 : 1;
  });
  return bad;
}

TEST(CrashTest, APowerCutDuringARemovalLeavesNoHalf) {
  const auto files = WithSteps({1, 2, 3});
  const size_t from = files->num_operations();
  const auto found = FindCheckpoints(files, kFolder);
  ASSERT_THAT(KeepNewest(*files, kFolder, *found, 2), IsEmpty());
  EXPECT_EQ(BadCrashesOfRemoval(*files, from), 0);
  const std::vector<size_t> syncs = files->SyncsSince(from);
  ASSERT_EQ(syncs.size(), 1u);
  files->ForgetSync(syncs[0]);
  EXPECT_GT(BadCrashesOfRemoval(*files, from), 0);
}

// A full disk, a broken one.
TEST(CrashTest, AFailureAtAnyOperationOfASave) {
  for (const absl::Status& failure :
       {absl::ResourceExhaustedError("disk full"), absl::DataLossError("broken")}) {
    for (size_t index = 0;; ++index) {
      const auto files = WithSteps({1});
      const size_t before = files->num_operations();
      files->FailAt(index, failure);
      const absl::Status status = Save(files, 2);
      if (status.ok()) {
        EXPECT_GE(index, files->num_operations() - before);
        EXPECT_GE(index, 12u);
        break;
      }
      EXPECT_EQ(status.code(), failure.code());
      EXPECT_THAT(Message(status), HasSubstr(Message(failure)));
      EXPECT_THAT(Message(status), HasSubstr("rank "));
      const std::vector<int64_t> steps = WholeSteps(files);
      // The last sync may fail when the checkpoint has its name.
      EXPECT_TRUE(steps == std::vector<int64_t>{1} || steps == (std::vector<int64_t>{1, 2}));
      ASSERT_EQ(Save(files, 3), absl::OkStatus());
      EXPECT_EQ(WholeSteps(files).back(), 3);
      ASSERT_THAT(KeepNewest(*files, kFolder, *FindCheckpoints(files, kFolder), 2), IsEmpty());
      EXPECT_EQ(files->List(kFolder)->size(), 2u) << "leftovers";
    }
  }
}

// One that cannot be removed stops neither what is behind it nor what lies beside it.
TEST(CrashTest, WhatCannotBeRemovedStopsNothing) {
  const absl::Status denied = absl::PermissionDeniedError("denied");
  const auto files = WithSteps({1, 2, 3, 4});
  files->FailAt(0, denied);  // step 1's new name
  EXPECT_THAT(KeepNewest(*files, kFolder, *FindCheckpoints(files, kFolder), 2),
              ElementsAre(denied));
  EXPECT_THAT(*files->List(kFolder),
              ElementsAre(CheckpointName(1), CheckpointName(3), CheckpointName(4)));
  for (const char* name : {".tmp-a", ".tmp-b", ".trash-c"}) {
    OkOrThrow(files->MakeDir(JoinPath(kFolder, name)));
    for (const char* file : {"/x", "/y"}) {
      OkOrThrow(files->Create(JoinPath(kFolder, name) + file).status());
    }
  }
  const auto found = FindCheckpoints(files, kFolder);
  files->FailAt(6, denied);  // step 1 takes six; then ".tmp-a/x"
  EXPECT_THAT(KeepNewest(*files, kFolder, *found, 2), ElementsAre(denied));
  EXPECT_THAT(*files->List(kFolder), ElementsAre(".tmp-a", CheckpointName(3), CheckpointName(4)));
  EXPECT_THAT(*files->List(JoinPath(kFolder, ".tmp-a")), ElementsAre("x"));
  EXPECT_THAT(KeepNewest(*files, kFolder, *FindCheckpoints(files, kFolder), 2), IsEmpty());
  EXPECT_THAT(*files->List(kFolder), ElementsAre(CheckpointName(3), CheckpointName(4)));
}

TEST(CrashTest, KeepingFewerThanTwoIsRefused) {
  const auto files = WithSteps({1, 2});
  EXPECT_THROW(KeepNewest(*files, kFolder, *FindCheckpoints(files, kFolder), 1), Error);
}

TEST(CrashTest, RejectedOnesAreNamedAndKept) {
  const auto files = WithSteps({1, 2});
  const auto second = ValueOrThrow(files->OpenFolder(JoinPath(kFolder, CheckpointName(2))));
  OkOrThrow(second->RemoveFile("rank-00001.safetensors"));
  OkOrThrow(files->MakeDir(JoinPath(kFolder, "step-x")));  // not a checkpoint's name
  const auto found = FindCheckpoints(files, kFolder);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->valid.size(), 1u);
  EXPECT_EQ(found->valid[0].step, 1);
  ASSERT_EQ(found->rejected.size(), 1u);
  EXPECT_EQ(found->rejected[0].name, CheckpointName(2));
  EXPECT_THAT(Message(found->rejected[0].why), HasSubstr("rank-00001.safetensors"));
  ASSERT_THAT(KeepNewest(*files, kFolder, *found, 2), IsEmpty());
  EXPECT_THAT(*files->List(kFolder), ElementsAre(CheckpointName(1), CheckpointName(2), "step-x"));
}

}  // namespace crash_test
}  // namespace apogee::checkpoint
