// Processes that die, stop and disagree, under a real mpirun: the others name the culprit and the
// call, the job ends in time with a documented exit code, and no process stays behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "apogee/tests/support/program.h"

namespace apogee {
namespace {

using ::apogee::testing::ProgramResult;
using ::apogee::testing::RunProgram;
using ::apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Job : ProgramResult {
  double seconds;
};

int NumLeft() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path() / "exe", error);
    count += !error && target == APOGEE_FAULT_RANKS;
  }
  return count;
}

class MpiFaultsTest : public ::testing::Test {
 protected:
  // `environment`: settings for the job, each followed by a blank.
  Job Start(const std::string& fault, const std::string& environment = "") {
    const auto start = std::chrono::steady_clock::now();
    Job job{RunProgram(environment + APOGEE_MPIRUN, "3 " APOGEE_FAULT_RANKS " " + fault, dir_), 0};
    job.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (int i = 0; i < 50 && NumLeft() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_EQ(NumLeft(), 0) << fault;
    return job;
  }
  TempDir dir_;
};

constexpr const char* kCall = "all_reduce(max, 1048576 x f32) #5 of group [0 1 2]";

TEST_F(MpiFaultsTest, NoFault) {
  const Job job = Start("none");
  EXPECT_EQ(job.exit_code, 0) << job.err;
  EXPECT_EQ(job.err, "");
}

TEST_F(MpiFaultsTest, Throw) {
  const Job job = Start("throw");
  EXPECT_EQ(job.exit_code, 1);
  EXPECT_THAT(job.err, HasSubstr("ended with: rank 1: the disk is on fire"));
  EXPECT_LT(job.seconds, 10);
}

TEST_F(MpiFaultsTest, ReturnAndExit) {
  const Job returned = Start("return");
  EXPECT_EQ(returned.exit_code, 1);
  EXPECT_THAT(returned.err,
              AllOf(HasSubstr(kCall), HasSubstr("rank 1 returned before this collective")));
  const Job left = Start("exit");
  EXPECT_NE(left.exit_code, 0);
  EXPECT_THAT(left.err, HasSubstr("rank 1: ended its process within the launched function"));
  EXPECT_LT(returned.seconds + left.seconds, 20);
}

// Open MPI's mpirun ends the job itself.
TEST_F(MpiFaultsTest, Death) {
  for (const char* fault : {"kill", "_exit"}) {
    const Job job = Start(fault);
    EXPECT_NE(job.exit_code, 0) << fault;
    EXPECT_LT(job.seconds, 15) << fault;
  }
}

// Time-out 2 s: then the job is aborted.
TEST_F(MpiFaultsTest, Stop) {
  const Job job = Start("stop");
  EXPECT_EQ(job.exit_code, 70) << job.err;
  EXPECT_THAT(job.err, AllOf(HasSubstr("ended with: rank 1: has called no collective for 2"),
                             HasSubstr("exit code 70")));
  EXPECT_LT(job.seconds, 20);
}

TEST_F(MpiFaultsTest, StopAfterTheLaunch) {
  const Job job = Start("hang_after");
  EXPECT_EQ(job.exit_code, 70) << job.err;
  EXPECT_LT(job.seconds, 20);
}

// The process answers, its function does not come back.
TEST_F(MpiFaultsTest, Forever) {
  const Job job = Start("forever");
  EXPECT_EQ(job.exit_code, 70) << job.err;
  EXPECT_THAT(job.err,
              HasSubstr("rank 1: is still in its function and has called no collective for 2"));
  EXPECT_LT(job.seconds, 25);
}

TEST_F(MpiFaultsTest, Disagreement) {
  const Job operation = Start("operation");
  EXPECT_EQ(operation.exit_code, 1);
  EXPECT_THAT(operation.err,
              AllOf(HasSubstr("ranks disagree on collective #5"), HasSubstr("rank 1"),
                    HasSubstr("barrier"), HasSubstr("all_reduce(max, 1048576 x f32)")));
  const Job count = Start("count");
  EXPECT_EQ(count.exit_code, 1);
  EXPECT_THAT(count.err, AllOf(HasSubstr("524288 x f32"), HasSubstr("1048576 x f32")));
  EXPECT_LT(operation.seconds + count.seconds, 20);
}

// It says so before it waits for anybody.
TEST_F(MpiFaultsTest, MachinesOfNoRanks) {
  const Job job = Start("none", "APOGEE_RANKS_PER_MACHINE=0 ");
  EXPECT_NE(job.exit_code, 0);
  EXPECT_THAT(job.err, HasSubstr("ended with: launch: the environment variable "
                                 "APOGEE_RANKS_PER_MACHINE is '0'; it must be a positive number"));
  EXPECT_LT(job.seconds, 20);
}

}  // namespace
}  // namespace apogee
