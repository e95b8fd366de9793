// SPDX-License-Identifier: Apache-2.0

// Booster::resume behind damage: it goes back to the newest checkpoint that is whole, and says what
// was passed over and which file is why.
//
// APOGEE_CORRUPTIONS: how many damages, of which a tenth is tried here
// (checkpoint/corruption_test).
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/tests/support/descriptor_limit.h"
#include "apogee/tests/support/files/damage.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/runs/small_run.h"

namespace apogee {
namespace resume_damaged_test {

using apogee::testing::Damage;
using apogee::testing::DamageCount;
using apogee::testing::DamageDice;
using apogee::testing::DescriptorLimit;
using apogee::testing::OnSmallRun;
using apogee::testing::ReadFile;
using apogee::testing::SmallRun;
using apogee::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ResumeDamagedTest : public ::testing::Test {
 protected:
  ResumeDamagedTest() {
    OkOrThrow(OnSmallRun(2, [&](SmallRun& run) {
      for (const int64_t step : {1, 2}) {
        run.Step();
        OkOrThrow(run.booster.save_training_state(folder_, {.step = step}));
      }
      return absl::OkStatus();
    }));
  }
  // Step 2's file of that name has these bytes instead.
  void ExpectStepOne(const std::string& name, const std::string& bytes, const std::string& what) {
    const std::string file = "checkpoints/step-00000002/" + name, before = ReadFile(dir_ / file);
    dir_.Write(file, bytes);
    EXPECT_EQ(OnSmallRun(2,
                         [&](SmallRun& run) {
                           const auto resumed = run.booster.resume(folder_);
                           if (!resumed.ok()) return resumed.status();
                           EXPECT_EQ(resumed->position.step, 1) << what;
                           EXPECT_EQ(resumed->notices.size(), 1u) << what;
                           if (resumed->notices.size() != 1) return absl::OkStatus();
                           EXPECT_THAT(resumed->notices[0],
                                       StartsWith("step-00000002 was passed over: "));
                           EXPECT_THAT(resumed->notices[0], HasSubstr(name)) << what;
                           return absl::OkStatus();
                         }),
              absl::OkStatus())
        << what;
    dir_.Write(file, before);
  }

  TempDir dir_;
  const std::string folder_ = dir_ / "checkpoints";
};

TEST_F(ResumeDamagedTest, GoesBackBehindDamageOfAnyFile) {
  const std::vector<std::string> names = {"manifest.json", "rank-00000.safetensors",
                                          "rank-00001.safetensors"};
  DamageDice dice(12);
  for (int i = 0; i < DamageCount(1000) / 10 && !HasFailure(); ++i) {
    const std::string& name = names[static_cast<size_t>(i) % names.size()];
    std::string bytes = ReadFile(folder_ + "/step-00000002/" + name);
    const Damage damage = dice.Apply(bytes);
    ExpectStepOne(name, bytes, damage.what + " in " + name);
  }
}

TEST_F(ResumeDamagedTest, AnEmptyFileAndAFileOfAnotherStep) {
  for (const char* name : {"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"}) {
    ExpectStepOne(name, "", "empty");
  }
  for (const char* name : {"rank-00000.safetensors", "rank-00001.safetensors"}) {
    ExpectStepOne(name, ReadFile(folder_ + "/step-00000001/" + name), "of step 1");
  }
}

// What cannot be opened for now is neither passed over nor renamed.
TEST_F(ResumeDamagedTest, TooManyOpenFilesIsNotDamage) {
  const absl::Status status = OnSmallRun(1, [&](SmallRun& run) {
    const absl::StatusOr<Resumed> whole = run.booster.resume(folder_);
    EXPECT_EQ(whole->position.step, 2);
    // The lock of the folder; then the manifest opens, and one rank's file.
    const DescriptorLimit limit(2);
    EXPECT_TRUE(absl::IsAlreadyExists(run.booster.save_training_state(folder_, {.step = 2})));
    return run.booster.resume(folder_).status();
  });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("step-00000002/rank-00001.safetensors: cannot open: Too"));
  EXPECT_EQ(checkpoint::FindCheckpoints(checkpoint::RealFileSystem(), folder_)->valid.size(), 2u);
}

}  // namespace resume_damaged_test
}  // namespace apogee
