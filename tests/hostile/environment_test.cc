// SPDX-License-Identifier: Apache-2.0

// Training with odd locales, without shared memory and with nowhere to write: the same bits, or an
// error.
#include <gmock/gmock-matchers.h>

#include <filesystem>

#include "apogee/tests/hostile/run_example.h"

namespace apogee {
namespace environment_test {

using ::apogee::testing::CanRun;
using ::apogee::testing::Hostile;
using ::apogee::testing::HostileResult;
using ::apogee::testing::Numbers;
using ::apogee::testing::RunExample;
using ::apogee::testing::SmallText;
using ::apogee::testing::TempDir;

class EnvironmentTest : public ::testing::Test {
 protected:
  // Metrics and checkpoints of a run with `hostile` are those of an ordinary one.
  void ExpectSameRun(const Hostile& hostile) {
    const std::string flags = "--ranks 2 --lr 0.01 --optim.weight_decay=0.1 --save-every 2 --out ";
    for (const auto& [folder, around] : {std::pair("plain", Hostile{}), {"odd", hostile}}) {
      std::filesystem::remove_all(dir_ / folder);
      const HostileResult result =
          RunExample(APOGEE_TRAIN_GPT, text_.TinyRun(flags + (dir_ / folder)), dir_, around);
      EXPECT_EQ(result.signal, 0);
      ASSERT_EQ(result.exit_code, 0) << result.err;
    }
    EXPECT_EQ(Numbers(dir_ / "plain").size(), 7u);
    EXPECT_EQ(Numbers(dir_ / "odd"), Numbers(dir_ / "plain"));
  }

  TempDir dir_;
  SmallText text_{dir_};
};

TEST_F(EnvironmentTest, Locales) {
  for (const std::string locale : {"C.UTF-8", "POSIX", "de_DE.UTF-8", "tr_TR.UTF-8", "garbage"}) {
    SCOPED_TRACE(locale);
    ExpectSameRun({.variables = "LC_ALL=" + locale + " LANG=" + locale});
  }
}

TEST_F(EnvironmentTest, NoEnvironmentAtAll) { ExpectSameRun({.variables = "-i"}); }

TEST_F(EnvironmentTest, NoSharedMemory) {
  const std::string hide =
      "unshare -m sh -c 'mount -t tmpfs -o size=0,mode=0 none /dev/shm; exec \"$@\"' sh";
  if (!CanRun(hide + " true")) GTEST_SKIP() << "may not unshare mounts";
  ExpectSameRun({.wrapper = hide});
}

TEST_F(EnvironmentTest, NowhereToPrint) {
  const std::string out = dir_ / "out";
  const HostileResult result = RunExample(APOGEE_TRAIN_GPT, text_.TinyRun("--out " + out), dir_,
                                          {.redirect = ">/dev/full 2>/dev/full"});
  EXPECT_EQ(result.signal, 0);
  if (result.exit_code == 0) {
    EXPECT_EQ(Numbers(out).size(), 7u);
  }
}

TEST_F(EnvironmentTest, NoTemporaryFolder) { ExpectSameRun({.variables = "TMPDIR=/no/such"}); }

}  // namespace environment_test
}  // namespace apogee
