// SPDX-License-Identifier: Apache-2.0

// Processes that end, or are stopped when the launch is over, under a real mpirun, or apogee run:
// the job ends in time with a documented exit code, and no process stays behind. comm_fault_trials
// has the rest.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "apogee/tests/support/program.h"

namespace apogee {
namespace mpi_faults_test {

using ::apogee::testing::ProgramResult;
using ::apogee::testing::RunProgram;
using ::apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Job : ProgramResult {
  // Open MPI's mpiexec sometimes crashes, or waits for its own thread for ever, when it ends an
  // aborted job (PMIx_server_finalize). The ranks have ended then, and their reports remain.
  bool launcher_failed() const {
    return std::string(APOGEE_BACKEND) == "mpi" &&
           (exit_code == 128 + SIGKILL || err.find("PMIx_server_finalize") != std::string::npos);
  }
  double seconds;
};

int NumLeft(const std::string& program) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path() / "exe", error);
    count += !error && target == program;
  }
  return count;
}

class MpiFaultsTest : public ::testing::Test {
 protected:
  Job Start(const std::string& fault) {
    return RunJob(APOGEE_FAULT_RANKS,
                  "--timeout 2 --trial " APOGEE_BACKEND "/" + fault + "/all_reduce/large/3/1");
  }
  // `environment`: settings for the job, each followed by a blank.
  Job RunJob(const std::string& program, const std::string& arguments,
             const std::string& environment = "") {
    const auto start = std::chrono::steady_clock::now();
    Job job{RunProgram(environment + "timeout -s KILL 40 " APOGEE_MPIRUN,
                       "3 " + program + " " + arguments, dir_),
            0};
    job.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (int i = 0; i < 50 && NumLeft(program) > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_EQ(NumLeft(program), 0) << arguments;
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

// Open MPI's mpirun ends the job itself; over TCP the others notice.
TEST_F(MpiFaultsTest, ExitWithoutAWord) {
  const Job job = Start("_exit");
  EXPECT_NE(job.exit_code, 0);
  if (!job.launcher_failed()) EXPECT_LT(job.seconds, 15);
}

TEST_F(MpiFaultsTest, StopAfterTheLaunch) {
  const Job job = Start("stop_after");
  if (job.launcher_failed()) {
    EXPECT_THAT(job.err, HasSubstr("ends the job with exit code 70: a process is lost"));
  } else {
    EXPECT_EQ(job.exit_code, 70) << job.err;
    EXPECT_LT(job.seconds, 20);
  }
}

// A whole suite of tests, one process of which never comes to the first.
TEST_F(MpiFaultsTest, ASuiteEndsByItself) {
  for (const std::string rank : {"0", "1", "2"}) {
    const Job job = RunJob(APOGEE_SUITE, "--hang-rank " + rank + " --timeout-seconds 2");
    EXPECT_NE(job.exit_code, 0) << job.err;
    EXPECT_THAT(job.err, AllOf(HasSubstr("processes do not come together: rank " + rank + ":"),
                               HasSubstr("exit code 70")));
    EXPECT_THAT(job.out, Not(HasSubstr(" OK "))) << "rank " << rank << " was not waited for";
    if (!job.launcher_failed()) EXPECT_LT(job.seconds, 25);
  }
}

TEST_F(MpiFaultsTest, ASuiteRefusesFlagsThatItDoesNotKnow) {
  for (const char* flags : {"--hang-rank 3", "--hang-rank -1", "--hang-rank one", "--hang-rank",
                            "--timeout-seconds 0", "--hang 1"}) {
    const Job job = RunJob(APOGEE_SUITE, flags);
    EXPECT_EQ(job.exit_code, 2) << flags;
    EXPECT_THAT(job.err, HasSubstr("[--hang-rank 0..2] [--timeout-seconds S]")) << flags;
  }
}

// Every process says so by itself, before MPI starts.
TEST_F(MpiFaultsTest, MachinesOfNoRanks) {
  const Job job = RunJob(APOGEE_SUITE, "", "APOGEE_RANKS_PER_MACHINE=0 ");
  EXPECT_EQ(job.exit_code, 2);
  EXPECT_THAT(job.err, HasSubstr("launch: the environment variable APOGEE_RANKS_PER_MACHINE is "
                                 "'0'; it must be a positive number"));
  EXPECT_LT(job.seconds, 20);
}

}  // namespace mpi_faults_test
}  // namespace apogee
