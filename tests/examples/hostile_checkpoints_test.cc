// SPDX-License-Identifier: Apache-2.0

// 01_train_gpt with a folder of checkpoints in which other things lie: nothing outside is touched,
// and a run whose newest checkpoint is spoilt goes on, every time it is started.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/program.h"

namespace apogee {
namespace hostile_checkpoints_test {

namespace fs = std::filesystem;
using apogee::testing::ProgramResult;
using apogee::testing::ReadFile;
using apogee::testing::RunProgram;
using apogee::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::Not;

class HostileCheckpointsTest : public ::testing::Test {
 protected:
  HostileCheckpointsTest() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i % 40) + " of the text\n";
    dir_.Write("text.txt", text);
    precious_.Write("a", "kept");
    precious_.Write("below/b", "kept");
  }

  std::string Flags(int steps, const std::string& out) const {
    return "--data " + (dir_ / "text.txt") +
           " --layers 1 --heads 2 --dim 16 --block 16 --batch 4 --sample 0 --threads 2 "
           "--save-every 1 --keep 2 --resume auto --steps " +
           std::to_string(steps) + " --out " + out;
  }
  ProgramResult Train(int steps) {
    return RunProgram("timeout 60 " APOGEE_TRAIN_GPT, Flags(steps, dir_ / "out"), dir_);
  }
  std::string Checkpoint(const std::string& name) const { return dir_ / "out/checkpoints/" + name; }
  void ExpectPreciousIsWhole() const {
    EXPECT_EQ(ReadFile(precious_ / "a"), "kept");
    EXPECT_EQ(ReadFile(precious_ / "below/b"), "kept");
  }

  TempDir dir_, precious_;
};

TEST_F(HostileCheckpointsTest, RetentionFollowsNoLink) {
  ASSERT_EQ(Train(2).exit_code, 0);
  fs::rename(Checkpoint("step-00000002"), dir_ / "archived");
  fs::create_directory_symlink(dir_ / "archived", Checkpoint("step-00000002"));
  fs::create_directory_symlink(precious_.path(), Checkpoint(".tmp-foo"));
  fs::create_directory_symlink(precious_.path(), Checkpoint(".trash-foo"));
  const ProgramResult result = Train(4);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("step-00000002 at step 2"));
  EXPECT_FALSE(fs::exists(fs::symlink_status(Checkpoint(".tmp-foo"))));
  EXPECT_FALSE(fs::exists(fs::symlink_status(Checkpoint("step-00000002"))));
  EXPECT_TRUE(fs::exists(dir_ / "archived/manifest.json"));
  EXPECT_TRUE(fs::exists(dir_ / "archived/rank-00000.safetensors"));
  ExpectPreciousIsWhole();
}

TEST_F(HostileCheckpointsTest, ASpoiltCheckpointStopsNoRun) {
  const std::string newest = "step-00000003", shard = newest + "/rank-00000.safetensors";
  const std::string older = Checkpoint("step-00000002");
  const std::vector<std::string> spoils = {
      "rm $S && ln -s " + (precious_ / "a") + " $S",
      "rm $S && mkfifo $S",
      "rm $S && mkdir $S",
      "rm $S && { mknod $S c 1 5 || mkdir $S; }",  // a device needs rights
      "rm -r $N && echo text > $N",
      "rm -r $N && ln -s none $N",
      "rm -r $N && mkfifo $N",
      "rm -r $N && cp -r " + older + " $N",
  };
  ASSERT_EQ(Train(3).exit_code, 0);
  fs::rename(dir_ / "out", dir_ / "whole");
  for (const std::string& spoil : spoils) {
    SCOPED_TRACE(spoil);
    fs::remove_all(dir_ / "out");
    fs::copy(dir_ / "whole", dir_ / "out", fs::copy_options::recursive);
    const std::string variables = "S=" + Checkpoint(shard) + "; N=" + Checkpoint(newest) + "; ";
    ASSERT_EQ(std::system((variables + spoil + " 2>/dev/null").c_str()), 0);
    const ProgramResult result = Train(4);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(newest + " was passed over: "));
    EXPECT_THAT(result.out, HasSubstr(newest + " was damaged and is now damaged-" + newest));
    EXPECT_TRUE(fs::exists(fs::symlink_status(Checkpoint("damaged-" + newest))));
    EXPECT_THAT(Train(5).out, HasSubstr("step-00000004 at step 4"));
    ExpectPreciousIsWhole();
  }
}

// In a namespace of its own, so that the disk goes with the program.
TEST_F(HostileCheckpointsTest, AFullDisk) {
  const std::string disk = dir_ / "disk";
  fs::create_directory(disk);
  const std::string mount = "unshare -m sh -c 'mount -t tmpfs -o size=150k none " + disk;
  if (std::system((mount + "' 2>/dev/null").c_str()) != 0) GTEST_SKIP() << "may not mount";
  const ProgramResult result =
      RunProgram(mount + " && timeout 60 " APOGEE_TRAIN_GPT " " + Flags(6, disk + "/out") +
                     "; code=$?; ls -a " + disk + "/out/checkpoints; exit $code'",
                 "", dir_);
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.err, HasSubstr(disk + "/out"));
  EXPECT_THAT(result.err, HasSubstr("free"));
  EXPECT_THAT(result.out, Not(HasSubstr(".tmp-")));
}

}  // namespace hostile_checkpoints_test
}  // namespace apogee
