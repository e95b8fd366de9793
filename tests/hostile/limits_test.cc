// SPDX-License-Identifier: Apache-2.0

// Training under the limits of a process: memory, threads, files, descriptors that are closed. A
// run succeeds, or ends by itself with one line that says what to change; never by a signal.
#include <gmock/gmock-matchers.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "apogee/tests/hostile/run_example.h"

namespace apogee {
namespace limits_test {

using ::apogee::testing::CanRun;
using ::apogee::testing::Hostile;
using ::apogee::testing::HostileResult;
using ::apogee::testing::Numbers;
using ::apogee::testing::RunExample;
using ::apogee::testing::SmallText;
using ::apogee::testing::TempDir;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class LimitsTest : public ::testing::Test {
 protected:
  HostileResult Train(const std::string& flags, const Hostile& hostile) {
    return RunExample(APOGEE_TRAIN_GPT, text_.TinyRun(flags), dir_, hostile);
  }
  void ExpectTrained(const HostileResult& result) {
    EXPECT_EQ(result.signal, 0);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  void ExpectOneLine(const HostileResult& result, const std::string& remedy) {
    EXPECT_EQ(result.signal, 0);
    EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, ContainsRegex(remedy));
  }

  TempDir dir_;
  SmallText text_{dir_};
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // maps terabytes of addresses
#else
constexpr bool kSanitized = false;
#endif

// From too little to start a thread to enough: with each limit something else finds no memory.
TEST_F(LimitsTest, AddressSpace) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs the address space";
  const std::string flags = "--ranks 4 --threads 4";
  for (const int kib : {120000, 148000, 175000, 205000}) {
    SCOPED_TRACE(kib);
    const HostileResult result = Train(flags, {.before = "ulimit -c 0 -v " + std::to_string(kib)});
    if (result.exit_code == 127) continue;  // the loader found no room for the libraries
    if (result.exit_code == 0) continue;
    EXPECT_EQ(result.signal, 0);
    EXPECT_THAT(result.exit_code, AnyOf(1, 70));
    EXPECT_THAT(result.err, ContainsRegex("(out of memory|cannot start).*ulimit -v"));
  }
  ExpectTrained(Train(flags, {.before = "ulimit -v 2000000"}));
}

TEST_F(LimitsTest, AModelThatDoesNotFit) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs the address space";
  ExpectOneLine(Train("--dim 2048 --layers 8", {.before = "ulimit -c 0 -v 400000"}),
                "out of memory.*ulimit -v");
}

// Another user's, because root has no such limit.
TEST_F(LimitsTest, Processes) {
#ifndef _OPENMP
  GTEST_SKIP() << "a rank of a build without OpenMP starts no threads";
#endif
  const std::string user = "setpriv --reuid=54321 --clear-groups";
  if (geteuid() != 0 || !CanRun(user + " test -x " + std::string(APOGEE_TRAIN_GPT))) {
    GTEST_SKIP() << "needs root, and a program that others may run";
  }
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::all);
  for (const auto& [flags, remedy] : std::vector<std::pair<std::string, std::string>>{
           {"--threads 64",
            "cannot start thread [0-9]+ of 64 of this rank: .*--threads.*ulimit -u"},
           {"--threads 40 --ranks 2", "cannot start thread [0-9]+ of 20 of this rank"},
           {"--threads 12 --ranks 12",
            "cannot start two threads for each of 12 ranks: .*ulimit -u"}}) {
    SCOPED_TRACE(flags);
    ExpectOneLine(Train(flags, {.before = "ulimit -u 16", .wrapper = user}), remedy);
  }
  ExpectTrained(Train("", {.before = "ulimit -u 16", .wrapper = user}));
}

TEST_F(LimitsTest, Stacks) {
#ifdef APOGEE_EMULATED_CUDA
  GTEST_SKIP() << "the emulated GPU keeps 1.2 MiB on the stack of every thread";
#endif
  if (kSanitized) GTEST_SKIP() << "a sanitizer's frames are larger";
  ExpectOneLine(Train("--ranks 2", {.before = "ulimit -s 128"}),
                "the thread of a rank has a stack of 128 KiB, needs 256 KiB; ulimit -s 8192");
  ExpectOneLine(Train("", {.variables = "OMP_STACKSIZE=64k"}),
                "a thread of OpenMP has a stack of 64 KiB, needs 256 KiB; unset OMP_STACKSIZE");
}

TEST_F(LimitsTest, OpenFiles) {
  if (!CanRun("prlimit --version")) GTEST_SKIP() << "no prlimit";
  const std::string flags = "--ranks 2 --save-every 2 --out ";
  for (const int files : {4, 6, 8}) {
    SCOPED_TRACE(files);
    const HostileResult result = Train(flags + (dir_ / std::to_string(files)),
                                       {.wrapper = "prlimit --nofile=" + std::to_string(files)});
    EXPECT_EQ(result.signal, 0);
    if (result.exit_code != 0) {
      ExpectOneLine(result, "Too many open files");
    }
  }
  ExpectTrained(Train(flags + (dir_ / "enough"), {.wrapper = "prlimit --nofile=20"}));
}

TEST_F(LimitsTest, ClosedDescriptors) {
  const std::string out = " --out " + (dir_ / "plain");
  ExpectTrained(Train(out, {}));
  const std::vector<double> want = Numbers(dir_ / "plain");
  ASSERT_EQ(want.size(), 7u);
  for (const std::string closed : {"<&-", ">&-", "2>&-", "<&- >&- 2>&-"}) {
    SCOPED_TRACE(closed);
    const std::string folder = dir_ / "closed";
    std::filesystem::remove_all(folder);
    const HostileResult result = Train("--save-every 2 --out " + folder, {.redirect = closed});
    EXPECT_EQ(result.signal, 0);
    // What it prints must not get into its files. That it cannot print may end it.
    const std::vector<double> got = Numbers(folder);
    if (result.exit_code == 0) {
      EXPECT_EQ(got, want);
    }
  }
}

}  // namespace limits_test
}  // namespace apogee
