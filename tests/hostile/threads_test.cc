// SPDX-License-Identifier: Apache-2.0

// Training with fewer threads than it asks for: OpenMP's variables, cores, numbers out of reach.
// Either the bits are those of an ordinary run, or one line says what to change.
#include <gmock/gmock-matchers.h>
#include <sched.h>

#include <algorithm>

#include "apogee/tests/hostile/run_example.h"

namespace apogee {
namespace threads_test {

using ::apogee::testing::CanRun;
using ::apogee::testing::Hostile;
using ::apogee::testing::HostileResult;
using ::apogee::testing::Numbers;
using ::apogee::testing::RunExample;
using ::apogee::testing::SmallText;
using ::apogee::testing::TempDir;
using ::testing::HasSubstr;

// "taskset -c N": one of the cores that this process may use.
std::string OnOneCore() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  int core = 0;
  while (core + 1 < CPU_SETSIZE && !CPU_ISSET(core, &set)) ++core;
  return "taskset -c " + std::to_string(core);
}

class ThreadsTest : public ::testing::Test {
 protected:
  HostileResult Train(const std::string& flags, const Hostile& hostile) {
    return RunExample(APOGEE_TRAIN_GPT, text_.TinyRun(flags), dir_, hostile);
  }
  std::vector<double> NumbersOf(const std::string& flags, const Hostile& hostile) {
    const std::string out = dir_ / ("run" + std::to_string(++num_runs_));
    const HostileResult result = Train(flags + " --out " + out, hostile);
    EXPECT_EQ(result.exit_code, 0) << result.signal << result.err;
    EXPECT_EQ(result.err, "");
    return Numbers(out);
  }
  void ExpectSameBits(const std::string& flags, const Hostile& hostile) {
    const std::vector<double> want = NumbersOf(flags, {});
    EXPECT_EQ(want.size(), 7u);
    EXPECT_EQ(NumbersOf(flags, hostile), want) << hostile.variables;
  }
  // One line, before anything has begun.
  void ExpectRefused(const std::string& flags, const Hostile& hostile, const std::string& message) {
    const HostileResult result = Train(flags, hostile);
    EXPECT_EQ(result.signal, 0);
    EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }

  TempDir dir_;
  SmallText text_{dir_};
  int num_runs_ = 0;
};

TEST_F(ThreadsTest, DynamicAdjustment) {
  if (!CanRun(OnOneCore() + " true")) GTEST_SKIP() << "no taskset";
  // One core, so that the adjustment leaves one thread, regardless of the machine's load.
  const Hostile dynamic{.variables = "OMP_DYNAMIC=true", .wrapper = OnOneCore()};
  ExpectSameBits("--precision f32", dynamic);
  ExpectSameBits("--precision bf16 --ranks 2 --threads 4", dynamic);
}

TEST_F(ThreadsTest, NoActiveLevels) {
  const Hostile serial{.variables = "OMP_MAX_ACTIVE_LEVELS=0"};
  ExpectSameBits("--precision f32", serial);
  ExpectSameBits("--precision bf16 --ranks 2 --threads 4", serial);
}

TEST_F(ThreadsTest, OtherVariablesThatChangeNothing) {
  ExpectSameBits("--precision f32",
                 {.variables = "OMP_NUM_THREADS=1 OMP_NESTED=true OMP_PROC_BIND=true "
                               "OMP_SCHEDULE=dynamic OMP_CANCELLATION=true"});
}

TEST_F(ThreadsTest, FewerCoresThanThreads) {
  if (!CanRun(OnOneCore() + " true")) GTEST_SKIP() << "no taskset";
  ExpectSameBits("--precision f32 --threads 3", {.wrapper = OnOneCore()});
}

TEST_F(ThreadsTest, ThreadLimit) {
#ifndef _OPENMP
  GTEST_SKIP() << "a rank of a build without OpenMP starts no threads";
#endif
  const Hostile limit{.variables = "OMP_THREAD_LIMIT=1"};
  ExpectRefused("--precision f32", limit,
                "--threads 2: a rank asks for 2 threads, but OpenMP gives it 1: OMP_THREAD_LIMIT=1 "
                "is set; unset OMP_THREAD_LIMIT, or ask for at most 1 thread per rank");
  // The limit is each rank's own, and what nobody asks for keeps to it.
  ExpectSameBits("--precision f32 --ranks 2", limit);
  ExpectSameBits("--precision f32 --ranks 2 --threads 4", {.variables = "OMP_THREAD_LIMIT=2"});
  EXPECT_EQ(NumbersOf("--precision f32 --threads 0", limit).size(), 7u);
}

TEST_F(ThreadsTest, MoreThreadsThanAnyMachineHas) {
  ExpectRefused("--threads 100000", {}, "--threads 100000: a rank may have at most 1024 threads");
  ExpectRefused("--threads 100000 --ranks 4", {},
                "a rank may have at most 1024 threads, got 25000");
}

#ifdef APOGEE_TRAIN_3D
TEST_F(ThreadsTest, PipelineWithoutActiveLevels) {
  const auto train = [&](const std::string& variables) {
    const std::string out = dir_ / ("3d" + variables);
    const HostileResult result = RunExample(
        APOGEE_TRAIN_3D,
        "--data " + text_.path() +
            " --layers 4 --heads 4 --kv-heads 2 --dim 32 --hidden 48 --block 16 --batch 8 --steps 3"
            " --precision f32 --ranks 2 --tp 1 --pp 2 --zero 0 --threads 4 --out " +
            out,
        dir_, {.variables = variables});
    EXPECT_EQ(result.exit_code, 0) << result.signal << result.err;
    return Numbers(out);
  };
  const std::vector<double> want = train("");
  EXPECT_GE(want.size(), 6u);
  EXPECT_EQ(train("OMP_MAX_ACTIVE_LEVELS=0"), want);
}
#endif

}  // namespace threads_test
}  // namespace apogee
