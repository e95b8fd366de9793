// Processes that end, or are stopped when the launch is over, under a real mpirun: the job ends in
// time with a documented exit code, and no process stays behind. comm_fault_trials has the rest.
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
using ::testing::HasSubstr;

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
  Job Start(const std::string& fault) {
    const auto start = std::chrono::steady_clock::now();
    const std::string trial = "mpi/" + fault + "/all_reduce/large/3/1";
    Job job{
        RunProgram(APOGEE_MPIRUN, "3 " APOGEE_FAULT_RANKS " --timeout 2 --trial " + trial, dir_),
        0};
    job.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (int i = 0; i < 50 && NumLeft() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_EQ(NumLeft(), 0) << fault;
    return job;
  }
  TempDir dir_;
};

TEST_F(MpiFaultsTest, NoFault) {
  const Job job = Start("none");
  EXPECT_EQ(job.exit_code, 0) << job.err;
  EXPECT_EQ(job.err, "");
}

TEST_F(MpiFaultsTest, ExitWithinTheFunction) {
  const Job job = Start("exit");
  EXPECT_NE(job.exit_code, 0);
  EXPECT_THAT(job.err, HasSubstr("rank 1: ended its process within the launched function"));
  EXPECT_LT(job.seconds, 15);
}

// Open MPI's mpirun ends the job itself.
TEST_F(MpiFaultsTest, ExitWithoutAWord) {
  const Job job = Start("_exit");
  EXPECT_NE(job.exit_code, 0);
  EXPECT_LT(job.seconds, 15);
}

TEST_F(MpiFaultsTest, StopAfterTheLaunch) {
  const Job job = Start("stop_after");
  EXPECT_EQ(job.exit_code, 70) << job.err;
  EXPECT_LT(job.seconds, 20);
}

}  // namespace
}  // namespace apogee
