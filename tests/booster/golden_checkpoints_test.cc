// SPDX-License-Identifier: Apache-2.0

// Checkpoints that earlier builds wrote (tests/golden_checkpoints) load bit for bit in this one:
// whole, and into a run under the layout that wrote them or another.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/tests/booster/golden_run.h"
#include "apogee/tests/support/files/temp_dir.h"

namespace apogee {
namespace golden_checkpoints_test {

using apogee::testing::GoldenLayout;
using apogee::testing::GoldenRun;
using apogee::testing::kGoldenLayouts;
using apogee::testing::kGoldenOptimizers;
using apogee::testing::kGoldenSteps;
using apogee::testing::OnGoldenRun;
using apogee::testing::ReadFile;
using apogee::testing::TellContents;
using apogee::testing::TempDir;

struct Golden {
  std::string folder;
  GoldenLayout layout;
  std::string optimizer;
};

// Of every version that is kept.
std::vector<Golden> All() {
  std::vector<Golden> all;
  for (const auto& version : std::filesystem::directory_iterator(APOGEE_GOLDEN_CHECKPOINTS)) {
    if (!version.is_directory()) continue;
    for (const GoldenLayout& layout : kGoldenLayouts) {
      for (const std::string& optimizer : kGoldenOptimizers) {
        all.push_back(
            {version.path().string() + "/" + layout.name + "-" + optimizer, layout, optimizer});
      }
    }
  }
  return all;
}

const std::string kName = checkpoint::CheckpointName(kGoldenSteps);

TEST(GoldenCheckpointsTest, AreWholeAndHoldWhatWasSaved) {
  ASSERT_FALSE(All().empty());
  for (const Golden& golden : All()) {
    const std::string path = golden.folder + "/" + kName;
    const auto reader = checkpoint::CheckpointReader::Open(checkpoint::RealFileSystem(), path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ(reader->Verify(), absl::OkStatus());
    const std::string want = ReadFile(golden.folder + ".txt");
    ASSERT_FALSE(want.empty()) << golden.folder;
    EXPECT_EQ(TellContents(path), want) << golden.folder;
  }
}

TEST(GoldenCheckpointsTest, ResumeBitForBitUnderTheirOwnAndOtherLayouts) {
  for (const Golden& golden : All()) {
    const std::string want = ReadFile(golden.folder + ".txt");
    std::vector<GoldenLayout> layouts = kGoldenLayouts;
    layouts.push_back({"single", 1});
    for (const GoldenLayout& layout : layouts) {
      const TempDir dir;
      OnGoldenRun(layout, golden.optimizer, [&](GoldenRun& run) {
        run.Step();  // what must go
        const auto resumed = run.booster.resume(golden.folder);
        ASSERT_TRUE(resumed.ok()) << resumed.status();
        // The first versions saved no configuration.
        EXPECT_THAT(resumed->notices, ::testing::ElementsAre(::testing::HasSubstr(
                                          "was saved by an earlier version, without its")));
        EXPECT_EQ(resumed->position.step, kGoldenSteps);
        EXPECT_EQ(resumed->position.extra.at("golden"), "yes");
        ASSERT_EQ(run.booster.save_training_state(dir / "again", {.step = kGoldenSteps}),
                  absl::OkStatus());
        run.Step();  // goes on
      });
      EXPECT_EQ(TellContents(dir / ("again/" + kName)), want)
          << golden.folder << " under " << layout.name;
    }
  }
}

}  // namespace golden_checkpoints_test
}  // namespace apogee
